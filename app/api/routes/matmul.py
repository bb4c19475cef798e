"""POST /matmul: operands are received into the slab, C is sent from it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.body import multipart
from app.api.body.context import RAW, body_context
from app.api.body.dispatch import ANSWERS, ReceivedBody, answer_media, media_of, receive
from app.api.body.operand_sinks import ResidentRefs, open_sink
from app.api.body.upload_overlap import DownloadOverlap
from app.api.errors import OF_PRODUCTS, documented, timed_out
from app.api.formats import json_matrix, npy, npz, safetensors
from app.api.formats.operand_spec import ProductOptions
from app.api.idempotency import KEY
from app.api.negotiation import listed, preference
from app.api.openapi import DirectRoute, header, parameters
from app.api.params import read_query
from app.api.products import product_of
from app.api.response import PiecesResponse, ProductResult, SlabResponse, framed
from app.api.responses import reply
from app.api.routes.matmul_async import ACCEPTED, accepted
from app.api.routes.matmul_small import small_product
from app.api.routes.matrices import LEFT, Matrix
from app.api.schemas import ProductQuery
from app.api.state import service_of, state_of, threads_of
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.service import Service
from kernels import CATALOGUE

router = APIRouter(route_class=DirectRoute, tags=["matmul"])

_FLOWING: Final = {RAW, npy.MEDIA, safetensors.MEDIA}  # forms with nothing after C's bytes that would depend on them
_NUMBER: Final = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
_ROW: Final = {"type": "array", "minItems": 1, "items": _NUMBER}
_MATRIX: Final = {"type": "array", "minItems": 1, "items": _ROW}
_OPERAND: Final = {"anyOf": [_MATRIX, {"type": "array", "minItems": 1, "items": _MATRIX}]}
_BINARY: Final = {"type": "string", "format": "binary"}
_JSON: Final = {"$ref": "#/components/schemas/ProductBody"}
_FORM: Final = {
    "type": "object",
    "properties": {"a": _BINARY, "b": _BINARY},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_HEADERS: Final = {
    "X-Device": "The device that made it.",
    "X-Kernel": "The kernel that made it.",
    "X-Config": "Its config, such as BM=16,BN=16,BK=16.",
    "X-Match": "How exact the config is for this problem: exact, stale, nearest or default.",
    "X-Instructions": "How products reach an arithmetic unit: fma, wmma, mma.sync, wgmma, dmma, or a library's name.",
    "X-Precision": "The precision it was made in.",
    "X-Declined": "Why that is strict though the product was to be emulated; absent where it is not.",
    "X-Shape": "C's sizes, such as 256x128; the batch comes first where there is one.",
    "X-Dtype": "C's type.",
    "X-A-Version": "The version of the resident matrix that A was; so for B, and for C where it was left resident.",
    "Server-Timing": "Milliseconds of receive, queue, build where a kernel was compiled and verified for this product, "
    "h2d, kernel, and d2h where it ended before the first byte.",
}
# A product in JSON.
ANSWER: Final = {
    "title": "Product",
    "type": "object",
    "required": ["c", "dtype", "kernel", "config", "match", "instructions", "precision", "declined"],
    "properties": {
        "c": _OPERAND,
        "dtype": {"type": "string"},
        "kernel": {"type": "string"},
        "config": {"type": "object", "additionalProperties": {"type": "integer"}},
        "match": {"enum": ["exact", "stale", "nearest", "default"]},
        "instructions": {"type": "string"},
        "precision": {"type": "string"},
        "declined": {"type": ["string", "null"]},
    },
}
_ANSWERED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "C, in the request's form unless Accept says otherwise; a form and an archive answer one .npy.",
        "content": {
            json_matrix.MEDIA: {"schema": {"$ref": "#/components/schemas/Product"}},
            **{media: {"schema": _BINARY} for media in ANSWERS if media != json_matrix.MEDIA},
        },
        "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()},
    }
}


def body_schema(members: dict[str, Any]) -> dict[str, Any]:
    """The JSON body: both operands, and the members that it shares with the query."""
    return {
        "title": "ProductBody",
        "type": "object",
        "description": "Two matrices by rows, or two batches of matrices.",
        "properties": {"a": _OPERAND, "b": _OPERAND, **members},
        "required": ["a", "b"],
        "additionalProperties": False,
        "example": {"a": [[1, 2], [3, 4]], "b": [[5, 6], [7, 8]]},
    }


@router.post(
    "/matmul",
    summary="Multiply two matrices",
    response_class=Response,
    responses=_ANSWERED
    | LEFT
    | ACCEPTED
    | timed_out()
    | documented(
        *OF_PRODUCTS,
        errors.UnknownMatrix,
        errors.MatrixGone,
        errors.QuotaExceeded,
        errors.KeyInUse,
        errors.KeyReused,
    ),
    openapi_extra={
        "parameters": [
            *parameters(ProductQuery),
            header("Accept", f"One of {', '.join(ANSWERS)}."),
            header(
                "Prefer",
                "`respond-async`: a job at once; `wait=N`: a job where C is not there in N seconds, 60 at most.",
            ),
            KEY,
        ],
        "requestBody": {
            "required": False,
            "content": {
                json_matrix.MEDIA: {"schema": _JSON},
                multipart.MEDIA: {"schema": _FORM},
                npz.MEDIA: {"schema": _BINARY},
                safetensors.MEDIA: {"schema": _BINARY},
                npy.MEDIA: {"schema": _BINARY},
                RAW: {"schema": _BINARY},
            },
        },
    },
)
async def matmul(request: Request) -> Response:
    """C[m,n] = op(A)[m,k] x op(B)[k,n], row-major, by the best config known for its problem.

    Operands come as rows of JSON numbers, as the .npy parts `a` and `b` of a form, as an .npz or a safetensors file
    with `a` and `b`, or as plain bytes: A's, then B's, little-endian, with `m`, `n` and `k` in the query.
    The body may be compressed, `Content-Encoding: gzip` or `deflate`, and unpacks to no more than a body may have.
    With `?a=` or `?b=` that operand is a resident matrix and the body has the other one alone, which may then be one
    .npy; with both there is no body. `?c=` leaves C resident: the answer is what it is, or C itself by Accept.
    """
    started = perf_counter()
    if (small := await small_product(request)) is not None:
        return small
    asked = read_query(ProductQuery, request)
    named, wanted = ResidentRefs.of(asked), ProductOptions(**asked.wanted())
    media = media_of(request, named.sent)
    answer = answer_media(listed(request, "accept"), json_matrix.MEDIA if named.c else media)
    service, threads = service_of(request), threads_of(request)
    known(service, wanted)
    async with AsyncExitStack() as stack:
        taken = await open_sink(service, threads, named, stack)
        await receive(request, media, wanted, body_context(request, taken, stack))
        received = taken.received()
        if (prefer := preference(request)).wants_job:
            return await accepted(request, received, stack, prefer, npy.MEDIA if named.c else media)
        if answer == json_matrix.MEDIA and not named.c:
            json_matrix.check_answer(received.placement.problem, received.wanted.convert)
        if taken.passage is not None and answer in _FLOWING and not named.c:
            taken.passage.stays()
        made = await _made(request, received, perf_counter() - started)
        state_of(request.app).metrics.product(request.scope, made.product.device.id, made.seconds)
        headers = made.headers() | taken.headers()
        if answer == json_matrix.MEDIA and taken.left is not None:
            return reply(Matrix.of(service, taken.left), 201, headers)
        if answer == json_matrix.MEDIA:
            return PiecesResponse(await threads.sized(made.c.nbytes, made.text), answer, headers)
        coming = await _coming(request, taken.passage, made, stack)
        pieces = await framed(answer, made.c, threads)
        return SlabResponse(pieces, answer, headers, stack.pop_all(), coming=coming)


async def _coming(
    request: Request, passage: ChunkedTransfer | None, made: ProductResult, stack: AsyncExitStack
) -> DownloadOverlap | None:
    """C on its way from the device, its first piece in the slab; None where all of it is. Raises DeviceError."""
    if passage is None or not passage.left:
        return None

    def ended(seconds: float) -> None:
        state_of(request.app).metrics.phases(made.product.device.id, {"d2h": seconds})

    late = DownloadOverlap(passage, threads_of(request), ended)
    stack.push_async_callback(late.stop)
    await late.until(1)
    return late


def known(service: Service, wanted: ProductOptions) -> None:
    """Refuse what would be refused later, before the body is read.

    Raises UnknownDevice, UnknownKernel, NoDevice, QueueFull, OverShare.
    """
    service.matmul.admission.expect_a_place()
    service.fleet.unit(wanted.device)
    if wanted.kernel not in {None, "vendor", *CATALOGUE}:
        raise errors.UnknownKernel(f"there is no kernel {wanted.kernel}; there are {', '.join(CATALOGUE)} and vendor")


async def _made(request: Request, received: ReceivedBody, receiving: float) -> ProductResult:
    """The product; one whose client goes away before it begins is not made."""
    placement, wanted = received.placement, received.wanted
    product = await product_of(request, placement, wanted.device, wanted.kernel)
    shape = placement.c.shape
    c = placement.c.reshape((1, *shape)) if received.stacked and len(shape) == len(("m", "n")) else placement.c
    return ProductResult(c, product, {"receive": receiving, **product.seconds})
