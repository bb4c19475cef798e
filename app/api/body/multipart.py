"""Reads operands from multipart/form-data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.requests import Request

from app.api.body import multipart_parser
from app.api.body.context import BodyContext
from app.api.body.decompression import unpacked_body
from app.api.body.stream import Body, staging
from app.api.formats import npy
from app.api.formats.operand_spec import ProductOptions, TensorSpecs, bytes_of
from app.api.state import FEW
from app.dtypes import Array
from app.errors import InvalidMatrix, Malformed

Land = Callable[[memoryview, int], Awaitable[None]]  # into a place, but for the first bytes, which are there

_BITE: Final = 32  # bytes read at once up to a part's numbers: fewer than stand between those of two parts


@dataclass(frozen=True, slots=True)
class _Opened:
    """What was kept of a part so far, and its header where all of it is there."""

    kept: bytes
    header: npy.NpyHeader | None


async def read_form(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    """Read a form with .npy parts."""
    form = multipart_parser.MultipartParser(
        multipart_parser.boundary(request.headers["content-type"]), context.sink.names
    )
    body = unpacked_body(request, context.max_body_bytes)
    opened = await _opened(body, form, wanted.dtype) if (body.length or 0) > FEW else _Opened(b"", None)
    header = opened.header
    found = context.sink.foreseen(header.described, wanted) if header is not None and header.plain else None
    if found is None or sum(each.nbytes for each in found.values()) > (body.length or 0):
        await _staged(body, form, opened.kept, wanted, context)
    else:
        await _straight(body, form, opened, (found, wanted), context)


async def _staged(
    body: Body, form: multipart_parser.MultipartParser, kept: bytes, wanted: ProductOptions, context: BodyContext
) -> None:
    """The rest of a form that is understood only once it is whole, because the second part's sizes come late."""
    async with staging(body.length or 0, context.lend, context.threads) as area:
        await area.write(kept)
        async for piece in body.pieces():
            for each in form.feed(piece):
                await area.write(each)
        form.finish()
        await context.filled(
            await context.threads.sized(len(area.data), multipart_parser.load, area.data, form, wanted), area
        )


async def _straight(
    body: Body,
    form: multipart_parser.MultipartParser,
    opened: _Opened,
    expected: tuple[TensorSpecs, ProductOptions],
    context: BodyContext,
) -> None:
    """The rest of a form of which all was foreseen: its numbers are not searched for boundaries."""
    found, wanted = expected
    places = await context.placed(found, wanted)
    for left in reversed(range(len(found))):
        described = _header(opened, form).described
        if described != found[described.name]:
            context.sink.nbytes({**found, described.name: described}, wanted)
            raise InvalidMatrix(f"{described.name} is not what the request says", operand=described.name)
        if not _header(opened, form).plain:
            context.expect(found, wanted, described.nbytes)
        await _landed(body, form, opened, places[described.name], context)
        opened = await _opened(body, form, wanted.dtype) if left else opened
    async for piece in body.pieces():
        _nothing(b"".join(form.feed(piece)), form.part)
    form.finish()


async def _opened(body: Body, form: multipart_parser.MultipartParser, dtype: str | None) -> _Opened:
    """The next part up to its numbers, or as far as it goes."""
    before, kept = form.part, b""
    header: npy.NpyHeader | None = None
    while not form.ended and (piece := await body.some(_BITE)):
        fed = b"".join(form.feed(piece))
        if form.part == before:
            _nothing(fed, before)
            continue
        kept += fed
        header = npy.begun(form.part, kept, dtype)
        if header is not None or not form.inside:
            break
    return _Opened(kept, header)


def _header(opened: _Opened, form: multipart_parser.MultipartParser) -> npy.NpyHeader:
    """The header of a part that must be there."""
    if opened.header is None:
        if form.ended:
            form.finish()
        raise Malformed(f"{form.part} is truncated within its header")
    return opened.header


async def _landed(
    body: Body, form: multipart_parser.MultipartParser, opened: _Opened, out: Array, context: BodyContext
) -> None:
    """Have a part's numbers land in their place, whatever order they come in."""
    header = _header(opened, form)
    if header.plain:
        await _numbers(body, form, opened, bytes_of(out), partial(context.landed, body, header.described.name))
        return

    async def aside(view: memoryview, start: int) -> None:
        await body.fill(view[start:])

    async with context.threads.entered(context.lend(header.described.nbytes)) as memory:
        await _numbers(body, form, opened, memory, aside)
        await context.threads.sized(len(memory), _ordered, header, memory, out)


def _ordered(header: npy.NpyHeader, memory: memoryview, out: Array) -> None:
    out[...] = header.array(memory).reshape(out.shape)


async def _numbers(
    body: Body, form: multipart_parser.MultipartParser, opened: _Opened, view: memoryview, land: Land
) -> None:
    """Exactly the bytes that the header tells of: those that came with it, and the rest from the body."""
    name, early = form.part, opened.kept[_header(opened, form).start :]
    if not form.inside or len(early) > len(view):
        npy.check_size(name, len(view), len(early))
    held = form.held() if form.inside else b""
    early, surplus = (early + held)[: len(view)], (early + held)[len(view) :]
    there = len(early) + (body.length or 0) - body.taken
    if there < len(view):
        npy.check_size(name, len(view), there)
    view[: len(early)] = early
    await land(view, len(early))
    _nothing(b"".join(form.feed(surplus)), name)


def _nothing(fed: bytes, name: str) -> None:
    """Refuse bytes of a part after its numbers."""
    if fed:
        raise Malformed(f"{name or 'the form'} does not end where its header says")
