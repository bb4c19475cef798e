"""Fast path of POST /matmul for small raw operands that arrived with the headers; the rest falls through to the route.

What is not as simple as that is left to the route before a byte of it is taken. What is refused here, such as a product
for which the queue has no place, the route would refuse in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from app.api.body.context import RAW
from app.api.body.operand_sinks import ResidentRefs
from app.api.body.stream import source_of
from app.api.formats.operand_spec import ProductOptions, bytes_of, told_problem
from app.api.params import USUAL, parse_query
from app.api.products import product_of
from app.api.response import ProductResult
from app.api.schemas import ProductQuery
from app.api.state import service_of, state_of
from app.errors import TilewiseError
from app.services.matmul.service import AT_ONCE
from kernels.problem import Problem

# The headers that the route reads.
_TELLING: Final = frozenset({b"content-type", b"content-length", b"content-encoding", b"accept", b"prefer"})
_ACCEPTS: Final = (None, b"*/*", RAW.encode())


@dataclass(frozen=True, slots=True)
class _Small:
    """What a query asks for: a product of plain matrices, or of batches of them, which take so many bytes."""

    problem: Problem
    device: str | None
    nbytes: int


async def small_product(request: Request) -> Response | None:
    """The answer to a product of at most AT_ONCE bytes that are plain and there; None for any other.

    Raises what `MatmulService.place` and `MatmulService.multiply` raise.
    """
    started, small = perf_counter(), _asked(request)
    source = source_of(request) if small is not None and _says_no_more(request, small.nbytes) else None
    if small is None or source is None or not source.has(small.nbytes):
        return None
    matmul = service_of(request).matmul
    with matmul.place(small.problem, device_id=small.device, backed=False) as placement:
        if matmul.is_fresh(placement):
            return None
        body, a, b = await source.take(small.nbytes), bytes_of(placement.a), bytes_of(placement.b)
        a[:], b[:] = body[: len(a)], body[len(a) :]
        received = perf_counter() - started
        product = await product_of(request, placement, small.device, None)
        made = ProductResult(placement.c, product, {"receive": received, **product.seconds})
        state_of(request.app).metrics.product(request.scope, product.device.id, made.seconds)
        return Response(placement.c.tobytes(), headers=made.headers(), media_type=RAW)


def _asked(request: Request) -> _Small | None:
    """What the query asks for, where that is small, and no resident matrix or kernel of the caller's choice."""
    query = request.scope["query_string"]
    return _parsed(query) if len(query) <= USUAL else None


@lru_cache(maxsize=1024)
def _parsed(query: bytes) -> _Small | None:
    try:
        asked = parse_query(ProductQuery, query)
        named, wanted = ResidentRefs.of(asked), ProductOptions(**asked.wanted())
        problem = told_problem(wanted)
    except TilewiseError:
        return None
    if named != ResidentRefs() or wanted.kernel is not None or problem.bytes > AT_ONCE:
        return None
    return _Small(problem, wanted.device, problem.a_bytes + problem.b_bytes)


def _says_no_more(request: Request, nbytes: int) -> bool:
    """Whether the headers say that the body is so many plain bytes, and that such an answer is fine."""
    said = [(name, value) for name, value in request.scope["headers"] if name in _TELLING]
    told = dict(said)
    accept = told.pop(b"accept", None)
    plain = {b"content-type": RAW.encode(), b"content-length": b"%d" % nbytes}
    return told == plain and accept in _ACCEPTS and len(said) == len(plain) + (accept is not None)
