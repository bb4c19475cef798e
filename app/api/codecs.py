"""The bodies of POST /matmul: what they may be, reading them into the slab, and what the answer may be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.requests import Request

from app.api.formats import npy, npz, parts, rows, tensors
from app.api.formats.operands import Fill, Loaded, Wanted, bytes_of, is_stacked, problem_of
from app.api.landing import Lend, Pour, Staging, declared_length, pieces, staging, wrong_length
from app.api.service import Threads
from app.errors import Invalid, Malformed, NotAcceptable, TooLarge, UnsupportedMediaType
from app.services.matmul import Placement
from kernels.problem import Problem

RAW: Final = "application/octet-stream"
ANSWERS: Final = (rows.MEDIA, npy.MEDIA, RAW, tensors.MEDIA)


@dataclass(frozen=True)
class Desk:
    """What reading a body takes: places for operands, staging bytes, threads, and a stack that gives all back."""

    place: Callable[[Problem, Fill | None], AbstractAsyncContextManager[Placement]]
    lend: Lend
    threads: Threads
    stack: AsyncExitStack
    max_body_bytes: int
    slab_bytes: int

    async def placed(self, problem: Problem, fill: Fill | None = None) -> Placement:
        """Places for a problem, filled, until the stack closes; raises TooLarge, NoRoom, Unsupported."""
        return await self.stack.enter_async_context(self.place(problem, fill))


@dataclass(frozen=True, slots=True)
class Received:
    """A body that has arrived: its operands are in their places."""

    placement: Placement
    stacked: bool
    wanted: Wanted


Reader = Callable[[Request, Wanted, Desk], Awaitable[Received]]


def media_of(request: Request) -> str:
    """The request's media type; raises UnsupportedMediaType where it is none that is read."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("a compressed body is not read: numbers do not shrink", accepted=list(FORMS))
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in FORMS:
        raise UnsupportedMediaType(f"{media or 'no type'} is not read, {', '.join(FORMS)} are", accepted=list(FORMS))
    return media


def answer_media(accept: str, media: str) -> str:
    """The type of the answer to a body of type `media`; raises NotAcceptable where `accept` leaves none."""
    own = {parts.MEDIA: npy.MEDIA, npz.MEDIA: npy.MEDIA}.get(media, media)
    ranges = _ranges(accept)
    offers = [own, *(each for each in ANSWERS if each != own)]
    best = max(offers, key=lambda offer: _quality(offer, ranges))
    if not _quality(best, ranges):
        raise NotAcceptable(f"the answer can be {', '.join(ANSWERS)}", accepted=list(ANSWERS))
    return best


async def receive(request: Request, media: str, wanted: Wanted, desk: Desk) -> Received:
    """Read a body of type `media`; the operands stay in their places until the desk's stack closes."""
    return await FORMS[media](request, wanted, desk)


def _ranges(accept: str) -> dict[str, float]:
    """Media ranges with their weights; nothing accepted means everything."""
    ranges = {}
    for entry in accept.split(",") if accept.strip() else ("*/*",):
        name, *options = (piece.strip().lower() for piece in entry.split(";"))
        weight = next((option[2:] for option in options if option.startswith("q=")), "1")
        ranges[name] = float(weight) if weight.replace(".", "", 1).isdecimal() else 0.0
    return ranges


def _quality(media: str, ranges: Mapping[str, float]) -> float:
    names = (media, media.partition("/")[0] + "/*", "*/*")
    return next((ranges[name] for name in names if name in ranges), 0.0)


async def _raw(request: Request, wanted: Wanted, desk: Desk) -> Received:
    """A's bytes, then B's, little-endian: straight from the socket into their places."""
    if wanted.m is None or wanted.n is None or wanted.k is None:
        raise Invalid(f"{RAW} needs m, n and k in the query", missing=[n for n in "mnk" if getattr(wanted, n) is None])
    kind = (wanted.dtype or "float32", wanted.precision or "strict", bool(wanted.trans_a), bool(wanted.trans_b))
    problem = Problem(wanted.m, wanted.n, wanted.k, wanted.batch or 1, *kind)
    expected, length = problem.a_bytes + problem.b_bytes, declared_length(request)
    if length is not None and length != expected:
        raise wrong_length(expected, length)
    placement = await desk.placed(problem)
    pour = Pour(bytes_of(placement.a), bytes_of(placement.b))
    async for piece in pieces(request):
        pour.write(piece)
    pour.finish()
    return Received(placement, problem.batch > 1, wanted)


async def _tensors(request: Request, wanted: Wanted, desk: Desk) -> Received:
    """A safetensors file: its header comes first, so its bytes too go straight into their places."""
    stream = pieces(request)
    front, needed = b"", tensors.LENGTH
    while len(front) < needed:
        piece = await anext(stream, b"")
        if not piece:
            raise Malformed("the file is truncated within its header", expected=needed, size=len(front))
        front += piece
        if len(front) >= tensors.LENGTH:
            needed = tensors.LENGTH + tensors.header_bytes(front[: tensors.LENGTH])
    found = tensors.header(front[tensors.LENGTH : needed])
    placement = await desk.placed(problem_of(found.a, found.b, wanted))
    pour = Pour(*(bytes_of(getattr(placement, name)) for name in found.order))
    pour.write(front[needed:])
    async for piece in stream:
        pour.write(piece)
    pour.finish()
    return Received(placement, is_stacked(found.a), wanted)


async def _json(request: Request, wanted: Wanted, desk: Desk) -> Received:
    rows.check_length(declared_length(request) or 0)
    return await _staged(request, desk, partial(rows.load, wanted=wanted), rows.check_length)


async def _npz(request: Request, wanted: Wanted, desk: Desk) -> Received:
    load = partial(npz.load, wanted=wanted, limit=desk.max_body_bytes, lend=desk.lend)
    return await _staged(request, desk, load)


async def _staged(
    request: Request, desk: Desk, load: Callable[[memoryview], Loaded], check: Callable[[int], None] = lambda _: None
) -> Received:
    """A body that is understood only once it is whole; `check` is told its length so far."""
    async with staging(request, desk.lend, desk.threads) as area:
        async for piece in pieces(request):
            await area.write(piece)
            check(len(area.data))
        return await _filled(await desk.threads.sized(len(area.data), load, area.data), area, desk)


async def _form(request: Request, wanted: Wanted, desk: Desk) -> Received:
    """A form: its parts are understood once both are there, because B's sizes come last."""
    form = parts.Form(parts.boundary(request.headers["content-type"]))
    async with staging(request, desk.lend, desk.threads) as area:
        async for piece in pieces(request):
            for kept in form.feed(piece):
                await area.write(kept)
        form.finish()
        return await _filled(await desk.threads.sized(len(area.data), parts.load, area.data, form, wanted), area, desk)


async def _filled(loaded: Loaded, area: Staging, desk: Desk) -> Received:
    size = area.lent_bytes + loaded.problem.bytes
    if size > desk.slab_bytes:
        message = f"operands and C take {size} bytes beside the body: send {RAW}, which needs no second place"
        raise TooLarge(message, limit=desk.slab_bytes, size=size)
    placement = await desk.placed(loaded.problem, loaded.fill)
    return Received(placement, loaded.stacked, loaded.wanted)


FORMS: Final[Mapping[str, Reader]] = {
    rows.MEDIA: _json,
    parts.MEDIA: _form,
    npz.MEDIA: _npz,
    tensors.MEDIA: _tensors,
    RAW: _raw,
}
