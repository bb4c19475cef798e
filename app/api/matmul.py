"""POST /matmul: the body goes from the socket into the slab, the product back from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.codecs import ANSWERS, RAW, Desk, Received, answer_media, media_of, receive
from app.api.errors import documented, timed_out
from app.api.formats import npz, parts, rows, tensors
from app.api.formats.operands import Fill, Wanted
from app.api.later import ACCEPTED, accepted, wants_job
from app.api.metrics import metrics_of
from app.api.openapi import DirectRoute, header, parameters
from app.api.query import read_query
from app.api.schemas import ProductQuery
from app.api.service import Service, Threads, service_of, threads_of
from app.api.writing import Made, PiecesResponse, SlabResponse
from app.services.matmul import Placement
from kernels import CATALOGUE
from kernels.problem import Problem

router = APIRouter(route_class=DirectRoute, tags=["products"])

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
    "X-Shape": "C's sizes, such as 256,128.",
    "X-Dtype": "C's type.",
    "Server-Timing": "Milliseconds of receive, queue, h2d, kernel and d2h.",
}
_EXAMPLE: Final = {
    "c": [[19, 22], [43, 50]],
    "dtype": "float32",
    "kernel": "tiled",
    "config": {"BM": 16},
    "match": "exact",
}
_ANSWER: Final = {
    "type": "object",
    "required": ["c", "dtype", "kernel", "config", "match"],
    "properties": {
        "c": _OPERAND,
        "dtype": {"type": "string"},
        "kernel": {"type": "string"},
        "config": {"type": "object", "additionalProperties": {"type": "integer"}},
        "match": {"enum": ["exact", "stale", "nearest", "default"]},
    },
}
_ANSWERED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "C, in the request's form unless Accept says otherwise; a form and an archive answer one .npy.",
        "content": {
            rows.MEDIA: {"schema": _ANSWER, "example": _EXAMPLE},
            **{media: {"schema": _BINARY} for media in ANSWERS if media != rows.MEDIA},
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
    responses=_ANSWERED
    | ACCEPTED
    | timed_out()
    | documented(
        errors.Malformed,
        errors.UnknownDevice,
        errors.UnknownKernel,
        errors.NotAcceptable,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.InvalidMatrix,
        errors.Unsupported,
        errors.TooLarge,
        errors.QueueFull,
        errors.NoRoom,
        errors.StoreFailed,
        errors.Closing,
        errors.ChildDied,
        errors.ChildTimedOut,
        errors.NoDevice,
        errors.CompileFailed,
        errors.LaunchFailed,
        errors.WrongResult,
    ),
    openapi_extra={
        "parameters": [
            *parameters(ProductQuery),
            header("Accept", f"One of {', '.join(ANSWERS)}."),
            header("Prefer", "`respond-async` answers with a job at once."),
        ],
        "requestBody": {
            "required": True,
            "content": {
                rows.MEDIA: {"schema": _JSON},
                parts.MEDIA: {"schema": _FORM},
                npz.MEDIA: {"schema": _BINARY},
                tensors.MEDIA: {"schema": _BINARY},
                RAW: {"schema": _BINARY},
            },
        },
    },
)
async def matmul(request: Request) -> Response:
    """C[m,n] = op(A)[m,k] x op(B)[k,n], row-major, by the best config known for its problem.

    Operands come as rows of JSON numbers, as the .npy parts `a` and `b` of a form, as an .npz or a safetensors file
    with `a` and `b`, or as plain bytes: A's, then B's, little-endian, with `m`, `n` and `k` in the query.
    """
    started = perf_counter()
    media = media_of(request)
    answer = answer_media(",".join(request.headers.getlist("accept")), media)
    wanted = Wanted(**read_query(ProductQuery, request).model_dump())
    service, threads = service_of(request), threads_of(request)
    _known(service, wanted)
    async with AsyncExitStack() as stack:
        received = await receive(request, media, wanted, _desk(service, threads, stack))
        if wants_job(request):
            return await accepted(request, received, stack)
        if answer == rows.MEDIA:
            rows.check_answer(received.placement.problem)
        made = await _made(service, threads, received, perf_counter() - started)
        metrics_of(request).product(made.seconds)
        if answer == rows.MEDIA:
            return PiecesResponse(await threads.sized(made.c.nbytes, made.text), answer, made.headers())
        return SlabResponse(made, answer, stack.pop_all())


def _known(service: Service, wanted: Wanted) -> None:
    """Refuse what would be refused later, before the body is read; raises UnknownDevice, UnknownKernel, NoDevice."""
    service.fleet.unit(wanted.device)
    if wanted.kernel not in {None, "vendor", *CATALOGUE}:
        raise errors.UnknownKernel(f"there is no kernel {wanted.kernel}; there are {', '.join(CATALOGUE)} and vendor")


def _desk(service: Service, threads: Threads, stack: AsyncExitStack) -> Desk:
    def place(problem: Problem, fill: Fill | None) -> AbstractAsyncContextManager[Placement]:
        return threads.entered(_placed(service, problem, fill))

    return Desk(place, partial(_lent, service), threads, stack, service.matmul.max_bytes, service.fleet.slab.nbytes)


@contextmanager
def _placed(service: Service, problem: Problem, fill: Fill | None) -> Iterator[Placement]:
    with service.matmul.place(problem) as placement:
        if fill is not None:
            fill(placement.a, placement.b)
        yield placement


@contextmanager
def _lent(service: Service, nbytes: int) -> Iterator[memoryview]:
    """Slab bytes for a body that is not understood yet: they count as every other operand's do."""
    slab = service.fleet.slab
    region = slab.lend(nbytes)
    try:
        yield slab.view(region)[:nbytes]
    finally:
        slab.release(region)


async def _made(service: Service, threads: Threads, received: Received, receiving: float) -> Made:
    placement, wanted = received.placement, received.wanted
    product = await threads.work(service.matmul.multiply, placement, wanted.device, wanted.kernel)
    shape = placement.c.shape
    c = placement.c.reshape((1, *shape)) if received.stacked and len(shape) == len(("m", "n")) else placement.c
    return Made(c, product, {"receive": receiving, **product.seconds})
