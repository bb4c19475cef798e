"""POST /v2/models/matmul/infer: operands from text, bytes or shared memory, C the way it is wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from itertools import chain
from time import perf_counter
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.stream import unpacked_body
from app.api.body.upload_overlap import UploadOverlap
from app.api.errors import OF_PRODUCTS, documented, timed_out
from app.api.formats.operand_spec import ProductOptions, bytes_of
from app.api.inference import json_tensors
from app.api.inference.compression import PackedResponse, answer_coding
from app.api.inference.datatypes import DATATYPES
from app.api.inference.model import MODEL, VERSION, versioned
from app.api.inference.request import LENGTH, PlacedOperands, operand, placing, read
from app.api.inference.schemas import Binary, Inference, RegionRef
from app.api.inference.shared_memory import expect_local
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import REFERENCE, header
from app.api.products import expect_servable, product_of
from app.api.response import SlabResponse, TextResponse, product_headers
from app.api.state import service_of, state_of, threads_of
from app.services.matmul.buffers import Product

router = DirectRouter("inference")

_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
_TOLD: Final = ("kernel", "match", "instructions", "precision")
_BYTES: Final = {"type": "string", "format": "binary"}
_ANSWERED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "C as JSON, or as JSON and the bytes that follow it, or in the shared memory that was named.",
        "content": {
            _JSON: {"schema": {"$ref": REFERENCE.format(model="InferResponse")}},
            _BINARY: {"schema": _BYTES},
        },
        "headers": {LENGTH: {"description": "Bytes of the JSON, where others follow.", "schema": {"type": "integer"}}},
    }
}


@versioned(
    router,
    "POST",
    "/infer",
    summary="Multiply two matrices",
    response_class=Response,
    responses=_ANSWERED
    | timed_out()
    | documented(
        *OF_PRODUCTS,
        errors.SharedMemoryOff,
        errors.UnknownModel,
        errors.UnknownRegion,
        errors.InvalidRegion,
    ),
    openapi_extra={
        "parameters": [
            header(LENGTH, "Bytes of the JSON, where the inputs' bytes follow it.", type="integer", minimum=0),
            header("Accept-Encoding", "gzip or deflate, alone, has the answer compressed."),
        ],
        "requestBody": {
            "required": True,
            "content": {
                _JSON: {"schema": {"$ref": REFERENCE.format(model="InferRequest")}},
                _BINARY: {"schema": _BYTES},
            },
        },
    },
)
async def infer(request: Request) -> Response:
    """C[m,n] = op(A)[m,k] x op(B)[k,n]: A and B in, C out, each as JSON numbers, as bytes or in shared memory."""
    started, state = perf_counter(), state_of(request.app)
    try:
        async with AsyncExitStack() as stack:
            asked, placed, receiving = await _received(request, stack, started)
            product = await product_of(request, placed.buffers, asked.device, asked.kernel)
            seconds = {"receive": receiving, **product.seconds}
            answer = await _answer(request, product, seconds, asked, placed, stack)
    except BaseException:
        state.inference.failed(perf_counter() - started)
        raise
    state.inference.succeeded(perf_counter() - started, seconds)
    state.metrics.product(request.scope, product.device.id, seconds)
    return answer


async def _received(request: Request, stack: AsyncExitStack, started: float) -> tuple[Inference, PlacedOperands, float]:
    """The request, its operands in their buffers until the stack closes, and the seconds that this took."""
    service, threads = service_of(request), threads_of(request)
    answer_coding(request)  # refuses what is not acceptable before it is computed
    body = unpacked_body(request, service.matmul.max_bytes)
    service.matmul.expect_place(principal_of(request))
    asked = await read(request, body)
    if asked.region is not None or any(isinstance(tensor.source, RegionRef) for tensor in asked.inputs):
        expect_local(request)
    expect_servable(service, ProductOptions(device=asked.device, kernel=asked.kernel), principal_of(request))
    body.expect(asked.following)

    def attempt() -> Awaitable[PlacedOperands]:
        return stack.enter_async_context(threads.entered(placing(service, asked, principal_of(request))))

    placed = await state_of(request.app).slow_transfers.make_room(attempt)
    body.hold(placed.buffers.problem.bytes)
    transfer = placed.buffers.transfer
    upload = UploadOverlap(transfer, threads, stack) if transfer is not None else None
    for tensor in asked.inputs:
        if isinstance(tensor.source, Binary):
            name, view = tensor.described.name.lower(), bytes_of(operand(placed.buffers, tensor))
            await (body.fill(view) if upload is None else upload.fill(body, name, view))
    await body.finish()
    return asked, placed, perf_counter() - started


async def _answer(
    request: Request,
    product: Product,
    seconds: Mapping[str, float],
    asked: Inference,
    placed: PlacedOperands,
    stack: AsyncExitStack,
) -> Response:
    """C the way it is wanted; raises InvalidRegion if the memory for it is gone."""
    threads, coding, c = threads_of(request), answer_coding(request), placed.buffers.result
    output: dict[str, Any] = {"name": "C", "datatype": DATATYPES[c.dtype.name], "shape": c.shape}
    headers = {**product_headers(product, c, seconds), "Content-Type": _JSON, "Vary": "Accept-Encoding"}
    pieces: list[bytes | memoryview]
    if placed.output is not None:
        await threads.work(placed.output.write, placed.c)  # clients take parameters beside it for bytes that follow
        pieces = [_text(asked, product, output)]
    elif asked.binary:
        text = _text(asked, product, output | {"parameters": {"binary_data_size": c.nbytes}})
        headers |= {"Content-Type": _BINARY, LENGTH: str(len(text))}
        pieces = [text, placed.c.view]
    else:
        text = _text(asked, product, output)
        written = chain([text[:-3], b',"data":'], json_tensors.write(c), [text[-3:]])
        if coding is None:
            return TextResponse(written, c.nbytes, headers, threads, stack.pop_all())
        return PackedResponse(written, coding, headers, threads, stack.pop_all())
    if coding is not None:
        return PackedResponse(pieces, coding, headers, threads, stack.pop_all())
    return SlabResponse(pieces, headers.pop("Content-Type"), headers, stack.pop_all())


def _text(asked: Inference, product: Product, output: dict[str, Any]) -> bytes:
    """The JSON part of the answer, which ends with its one output."""
    told = {"device": product.device.id} | {name: getattr(product, name) for name in _TOLD}
    told |= {"declined": product.declined} if product.declined else {}
    named = {"model_name": MODEL, "model_version": VERSION}
    given = {} if asked.id is None else {"id": asked.id}
    return orjson.dumps({**named, **given, "parameters": told, "outputs": [output]})
