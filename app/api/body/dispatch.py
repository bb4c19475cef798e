"""Chooses the reader of a body by its media type, and the format of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Final

from starlette.requests import Request

from app.api.body import multipart
from app.api.body.operand_sinks import RAW, BodyContext
from app.api.body.stream import Body, StagedBody, body_of, coding_of, staging, unpacked_body
from app.api.formats import json_matrix, npy, npz, safetensors
from app.api.formats.operand_spec import OPERANDS, ParsedBody, Places, ProductOptions, TensorSpecs, bytes_of
from app.api.negotiation import best_media
from app.errors import Malformed, NotAcceptable, UnsupportedMediaType

NOTHING: Final = ""
ANSWERS: Final = (json_matrix.MEDIA, npy.MEDIA, RAW, safetensors.MEDIA, npz.MEDIA)


Reader = Callable[[Request, ProductOptions, BodyContext], Awaitable[None]]


def _unchecked(nbytes: int) -> None:
    """Let a body be as long as it is."""
    del nbytes


def media_of(request: Request, names: tuple[str, ...] = OPERANDS) -> str:
    """The request's media type; raises UnsupportedMediaType for one that is not read for such matrices.

    A body of no matrices need not have one.
    """
    forms = [media for media in FORMS if media != npy.MEDIA or len(names) == 1]
    coding_of(request)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not names:
        return media if media in forms else NOTHING
    if media not in forms:
        got = f"got {media}" if media else "the request has none"
        raise UnsupportedMediaType(f"Content-Type must be {_either(forms)}: {got}", accepted=forms)
    return media


@lru_cache(maxsize=256)
def answer_media(accept: str, media: str) -> str:
    """The type of the answer to a body of type `media`; raises NotAcceptable where `accept` leaves none."""
    own = {multipart.MEDIA: npy.MEDIA, npz.MEDIA: npy.MEDIA, NOTHING: npy.MEDIA}.get(media, media)
    best = best_media(accept, [own, *(each for each in ANSWERS if each != own)])
    if best is None:
        raise NotAcceptable(f"the answer can be {', '.join(ANSWERS)}", accepted=list(ANSWERS))
    return best


async def receive(request: Request, media: str, wanted: ProductOptions, context: BodyContext) -> None:
    """Read a body of type `media`; its operands stay in their buffers until the context's stack closes."""
    if context.sink.names:
        await FORMS[media](request, wanted, context)
    else:
        body = body_of(request)
        body.expect(0)
        await context.allocate({}, wanted)
        await body.finish()


def _either(names: Sequence[str]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


async def _raw(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    """The matrices' bytes, little-endian, A's before B's: from the socket into their buffers."""
    await _receive_matrices(
        unpacked_body(request, context.max_body_bytes), context.sink.describe_raw(wanted), wanted, context
    )


async def _tensors(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    """A safetensors file: its header comes first, so its bytes too go straight into their buffers."""
    body = unpacked_body(request, context.max_body_bytes)
    length = safetensors.header_bytes(await _front(body, safetensors.LENGTH))
    found = safetensors.header(await _front(body, length), context.sink.names)
    await _receive_matrices(body, found, wanted, context)


async def _npy(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    """One .npy: straight into its buffer if its layout is the buffer's."""
    body, (name,) = unpacked_body(request, context.max_body_bytes), context.sink.names
    front = await _front(body, npy.FRONT)
    front += await _front(body, npy.header_end(name, front) - npy.FRONT)
    header = npy.header(name, memoryview(front), wanted.dtype)
    found = {name: header.described}
    if header.plain:
        await _receive_matrices(body, found, wanted, context)
        return

    def fill(places: Places) -> None:
        places[name][...] = header.array(area.data).reshape(places[name].shape)

    body.expect(header.described.nbytes)
    async with staging(header.described.nbytes, context.lend, context.threads, context.slow) as area:
        body.hold(area.lent_bytes)
        await area.receive_pieces(body, _unchecked)
        npy.check_size(name, header.described.nbytes, len(area.data))
        await context.fill(ParsedBody(found, wanted, fill), area)


async def _receive_matrices(body: Body, found: TensorSpecs, wanted: ProductOptions, context: BodyContext) -> None:
    """Receive the rest of a body, the matrices' own bytes in their order."""
    nbytes = sum(each.nbytes for each in found.values())
    body.expect(nbytes)
    places = await context.allocate(found, wanted)
    body.hold(context.sink.nbytes(found, wanted))
    async with body.slot(nbytes):
        for name in found:
            await context.receive_operand(body, name, bytes_of(places[name]))
    await body.finish()


async def _front(body: Body, nbytes: int) -> bytes:
    """Bytes of a file's header; raises Malformed if the file ends within it."""
    front = b""
    while len(front) < nbytes:
        piece = await body.some(nbytes - len(front))
        if not piece:
            raise Malformed("the file is truncated within its header", expected=nbytes, size=len(front))
        front += piece
    return front


async def _json(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    body = unpacked_body(request, context.max_body_bytes)
    json_matrix.check_length(body.length or 0)
    load = partial(json_matrix.load, wanted=wanted, names=context.sink.names)
    async with _whole(body, context, json_matrix.check_length) as area:
        await context.fill(await context.threads.parse(len(area.data), load, area.data), area)


async def _form(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    boundary = multipart.boundary_of(request.headers["content-type"])
    load = partial(multipart.load, boundary=boundary, names=context.sink.names, wanted=wanted)
    await _staged(unpacked_body(request, context.max_body_bytes), context, load)


async def _npz(request: Request, wanted: ProductOptions, context: BodyContext) -> None:
    load = partial(npz.load, wanted=wanted, limit=context.max_body_bytes, lend=context.lend, names=context.sink.names)
    await _staged(unpacked_body(request, context.max_body_bytes), context, load)


async def _staged(body: Body, context: BodyContext, load: Callable[[memoryview], ParsedBody]) -> None:
    """A body that is parsed once it is whole."""
    async with _whole(body, context) as area:
        await context.fill(await context.threads.sized(len(area.data), load, area.data), area)


@asynccontextmanager
async def _whole(
    body: Body, context: BodyContext, check: Callable[[int], None] = _unchecked
) -> AsyncIterator[StagedBody]:
    """A body that is received whole; `check` is called with its length so far."""
    async with staging(body.length or 0, context.lend, context.threads, context.slow) as area:
        if body.length is not None:
            await area.receive(body)
        await area.receive_pieces(body, check)
        yield area


FORMS: Final[Mapping[str, Reader]] = {
    json_matrix.MEDIA: _json,
    multipart.MEDIA: _form,
    npz.MEDIA: _npz,
    safetensors.MEDIA: _tensors,
    npy.MEDIA: _npy,
    RAW: _raw,
}
