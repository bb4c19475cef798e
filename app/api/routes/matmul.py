"""POST /matmul: operands are received into the slab, C is sent from it."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from functools import lru_cache
from time import perf_counter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.preconditions import etag
from app.api.admission.request_guard import principal_of
from app.api.body import multipart
from app.api.body.dispatch import ANSWERS, answer_media, media_of, receive
from app.api.body.operand_sinks import RAW, body_context, open_sink
from app.api.body.stream import source_of
from app.api.body.upload_overlap import DownloadOverlap
from app.api.errors import OF_PRODUCTS, documented, timed_out
from app.api.formats import json_matrix, npy, npz, safetensors
from app.api.formats.operand_spec import OPERANDS, ProductOptions, bytes_of, told_problem
from app.api.idempotency import KEY
from app.api.negotiation import listed, preference
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import header
from app.api.params import USUAL, parse_query
from app.api.products import expect_servable, product_of
from app.api.response import SlabResponse, TextResponse, encode, product_headers, product_json
from app.api.responses import reply
from app.api.routes.matmul_async import ACCEPTED, accepted
from app.api.routes.matrices import LEFT, Matrix
from app.api.schemas import ProductQuery
from app.api.state import service_of, state_of, threads_of
from app.errors import NoRoom, TilewiseError
from app.observability.tracing import trace_phases
from app.services.matmul.buffers import Product
from app.services.matmul.chunked_transfer import ChunkedTransfer
from app.services.matmul.service import AT_ONCE
from kernels.problem import Problem

router = DirectRouter("matmul")

_FLOWING: Final = {RAW, npy.MEDIA, safetensors.MEDIA}  # forms with nothing after C's bytes that would depend on them
# The headers that the route reads.
_TELLING: Final = frozenset({b"content-type", b"content-length", b"content-encoding", b"accept", b"prefer"})
_ACCEPTS: Final = (None, b"*/*", RAW.encode())
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
    "X-Device": "The device that made it, or most of its tiles.",
    "X-Devices": "The tiles that each of several devices made, such as cuda:0=9,cuda:1=7; absent where one made it.",
    "X-Kernel": "The kernel that made it.",
    "X-Config": "Its config, such as BM=16,BN=16,BK=16.",
    "X-Match": "How exact the config is for this problem: exact, stale, nearest or default.",
    "X-Instructions": "How products reach an arithmetic unit: fma, wmma, mma.sync, wgmma, dmma, or a library's name.",
    "X-Precision": "The precision it was made in.",
    "X-Declined": "Why that is strict though the product was to be emulated; absent where it is not.",
    "X-Shape": "C's sizes, such as 256x128; the batch comes first where there is one.",
    "X-Dtype": "C's type.",
    "X-Tiles": "How many tiles C was made in; absent where its operands fitted the device.",
    "X-Certificate": "With `verify`: the method, and what it found as name=value, the members of `certificate`.",
    "X-A-Version": "The version of the resident matrix that A was; so for B, and for C where it was left resident.",
    "Server-Timing": "Milliseconds of receive, queue, build where a kernel was compiled and verified for this product, "
    "h2d, kernel, d2h where it ended before the first byte, and verify of a product that was certified.",
}
_CERTIFICATE_MEMBERS: Final[dict[str, dict[str, Any]]] = {
    "method": {"enum": ["freivalds"]},
    "rounds": {"type": "integer", "description": "Vectors of +1 and -1 that C was compared by."},
    "missed": {"type": "number", "description": "Chance at most that an element off by more than the bound is missed."},
    "residual": {"type": "number", "description": "The |r C - (r op(A)) op(B)|_j that comes nearest to its bound."},
    "bound": {"type": "number", "description": "What that residual is at most in a right product of its precision."},
    "recomputed": {"type": "integer", "description": "Rows that stood out and were made again in float64."},
    "error": {"type": ["number", "null"], "description": "Of those, the error that comes nearest to its bound."},
    "error_bound": {"type": ["number", "null"], "description": "What that error may be in a right product."},
    "unchecked": {"type": "integer", "description": "Elements beside NaN, infinities or overflow, not spoken of."},
}
CERTIFICATE: Final[dict[str, Any]] = {
    "title": "Certificate",
    "description": "What was found of a product that was to be verified; null where it was not.",
    "type": ["object", "null"],
    "required": list(_CERTIFICATE_MEMBERS),
    "properties": _CERTIFICATE_MEMBERS,
}
# A product in JSON.
ANSWER: Final = {
    "title": "Product",
    "type": "object",
    "required": ["c", "dtype", "kernel", "config", "match", "instructions", "precision", "declined", "certificate"],
    "properties": {
        "c": _OPERAND,
        "dtype": {"type": "string"},
        "kernel": {"type": "string"},
        "config": {"type": "object", "additionalProperties": {"type": "integer"}},
        "match": {"enum": ["exact", "stale", "nearest", "default"]},
        "instructions": {"type": "string"},
        "precision": {"type": "string"},
        "declined": {"type": ["string", "null"]},
        "certificate": CERTIFICATE,
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
        errors.UnknownFile,
        errors.MatrixGone,
        errors.QuotaExceeded,
        errors.KeyInUse,
        errors.KeyReused,
    ),
    query=ProductQuery,
    openapi_extra={
        "parameters": [
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
    With `?a=` or `?b=` that operand is a resident matrix, with `?a_file=` or `?b_file=` a .npy of the operator's, and
    the body has the other one alone, which may then be one .npy; with both there is no body. `?c=` leaves C resident:
    the answer is what it is, or C itself by Accept.
    """
    started = perf_counter()
    if (small := await _small_product(request)) is not None:
        return small
    options = _options_of(request)
    media = media_of(request, options.sent)
    answer = answer_media(listed(request, "accept"), json_matrix.MEDIA if options.c else media)
    state, service, threads = state_of(request.app), service_of(request), threads_of(request)
    expect_servable(service, options, principal_of(request))
    async with AsyncExitStack() as stack:
        sink = await open_sink(request, options, stack)
        await receive(request, media, options, body_context(request, sink, stack))
        if sink.files:
            await threads.work(sink.read_files)
        buffers, transfer, c = sink.buffers, sink.transfer, sink.buffers.result
        if (prefer := preference(request)).wants_job:
            return await accepted(request, buffers, sink.options, stack, prefer, npy.MEDIA if options.c else media)
        if answer == json_matrix.MEDIA and not options.c:
            json_matrix.check_answer(buffers.problem, sink.options.convert)
        if transfer is not None and answer in _FLOWING and not options.c:
            transfer.keep_on_device(streamed=True)
        received = perf_counter() - started
        product = await product_of(request, buffers, *sink.options.how)
        seconds = {"receive": received, **product.seconds}
        state.metrics.product(request.scope, product.device.id, seconds)
        headers = product_headers(product, c, seconds) | sink.headers()
        if answer == json_matrix.MEDIA and sink.result is not None:
            return reply(Matrix.of(service, sink.result), 201, headers | {"ETag": etag(sink.result.key)})
        if answer == json_matrix.MEDIA:
            headers["Content-Type"] = answer
            return TextResponse(product_json(product, c), c.nbytes, headers, threads, stack.pop_all())
        rest = await _download(request, transfer, product, stack)
        return SlabResponse(await encode(answer, c, threads), answer, headers, stack.pop_all(), rest=rest)


async def _download(
    request: Request, transfer: ChunkedTransfer | None, product: Product, stack: AsyncExitStack
) -> DownloadOverlap | None:
    """C on its way from the device, its first chunk in the slab; None if all of it is. Raises DeviceError."""
    if transfer is None or not transfer.pending_result_bytes:
        return None

    def ended(seconds: float) -> None:
        state_of(request.app).metrics.phases(product.device.id, {"d2h": seconds})
        trace_phases(perf_counter() - seconds, [("d2h", seconds)])

    download = DownloadOverlap(transfer, threads_of(request), ended)
    stack.push_async_callback(download.stop)
    await download.until(1)
    return download


async def _small_product(request: Request) -> Response | None:
    """The fast path: the answer to a small product whose plain operands arrived with the head; None for any other.

    Anything else falls through to the route before a byte of it is taken; errors are identical.
    """
    started, small = perf_counter(), _small_problem(request)
    if small is None:
        return None
    problem, device = small
    nbytes = problem.a_bytes + problem.b_bytes
    source = source_of(request) if _is_plain(request, nbytes) else None
    if source is None or not source.has(nbytes):
        return None
    matmul = service_of(request).matmul
    with ExitStack() as stack:
        reserved = matmul.reserve(problem, device_id=device, committed=False, principal=principal_of(request))
        try:
            buffers = stack.enter_context(reserved)
        except NoRoom:
            return None  # there may be room in a moment
        if matmul.is_uncommitted(buffers):
            return None
        body, a, b = await source.take(nbytes), bytes_of(buffers.a), bytes_of(buffers.b)
        a[:], b[:] = body[: len(a)], body[len(a) :]
        received = perf_counter() - started
        product = await product_of(request, buffers, device, None)
        seconds = {"receive": received, **product.seconds}
        state_of(request.app).metrics.product(request.scope, product.device.id, seconds)
        headers = product_headers(product, buffers.c, seconds)
        return Response(buffers.c.tobytes(), headers=headers, media_type=RAW)


def _small_problem(request: Request) -> tuple[Problem, str | None] | None:
    """The problem and device of a query; None if it is large, or names a resident matrix or a kernel."""
    query = request.scope["query_string"]
    return _parsed(query) if len(query) <= USUAL else None


@lru_cache(maxsize=1024)
def _parsed(query: bytes) -> tuple[Problem, str | None] | None:
    try:
        options = parse_query(ProductQuery, query).options()
        problem = told_problem(options)
    except TilewiseError:
        return None
    if options.c is not None or options.sent != OPERANDS or options.how[1:] != (None, None) or problem.bytes > AT_ONCE:
        return None
    return problem, options.device


def _is_plain(request: Request, nbytes: int) -> bool:
    """Whether the headers say that the body is `nbytes` plain bytes, and accept a plain answer."""
    said = [(name, value) for name, value in request.scope["headers"] if name in _TELLING]
    told = dict(said)
    accept = told.pop(b"accept", None)
    plain = {b"content-type": RAW.encode(), b"content-length": b"%d" % nbytes}
    return told == plain and accept in _ACCEPTS and len(said) == len(plain) + (accept is not None)


def _options_of(request: Request) -> ProductOptions:
    """The options of a product's query string; raises Invalid."""
    query = request.scope["query_string"]
    return _options(query) if len(query) <= USUAL else parse_query(ProductQuery, query).options()


@lru_cache(maxsize=1024)
def _options(query: bytes) -> ProductOptions:
    return parse_query(ProductQuery, query).options()
