"""Bodies taken in as a route takes them, into a real slab, with no server and no device."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from starlette.requests import Request

from app.api.body.dispatch import media_of, receive
from app.api.body.flow_control import SlowTransfers
from app.api.body.operand_sinks import BodyContext, ProductSink, lent
from app.api.formats.operand_spec import ONE, Fill, Places, ProductOptions, TensorSpec, TensorSpecs, check_shape
from app.api.state import State
from app.devices.slab import Slab
from app.dtypes import Array
from app.errors import TilewiseError
from app.server import TransferLimits
from app.server.thread_pool import RequestThreads
from app.services.principal import ANONYMOUS
from app.services.service import Service

MOST = 2**20  # bytes that a body may have, and may unpack to
JSON, FORM, NPZ = "application/json", "multipart/form-data", "application/x-npz"
TENSORS, NPY, RAW = "application/vnd.safetensors", "application/x-npy", "application/octet-stream"
MEDIA = (JSON, FORM, NPZ, TENSORS, NPY, RAW)


@dataclass(frozen=True)
class Sent:
    """A request: what it says of its body, the body, how it is cut into pieces, and whether its length is told."""

    media: str
    body: bytes
    coding: str = ""
    boundary: str = ""
    wanted: ProductOptions = field(default_factory=ProductOptions)
    names: tuple[str, ...] = ("a", "b")
    cuts: Sequence[int] = ()
    is_chunked: bool = False

    def headers(self) -> list[tuple[bytes, bytes]]:
        media = f"{self.media}; boundary={self.boundary}" if self.boundary else self.media
        length = [] if self.is_chunked else [("content-length", str(len(self.body)))]
        coding = [("content-encoding", self.coding)] if self.coding else []
        told = [("content-type", media), *length, *coding]
        return [(name.encode(), value.encode("latin1", "replace")) for name, value in told]

    def messages(self) -> Iterator[dict[str, Any]]:
        at = [0, *sorted({min(cut, len(self.body)) for cut in self.cuts}), len(self.body)]
        for start, end in pairwise(at):
            yield {"type": "http.request", "body": self.body[start:end], "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}


@dataclass(frozen=True)
class Taken:
    """What came of it: 200 and the operands, or the error's status and code."""

    status: int
    code: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    operands: Mapping[str, Array] = field(default_factory=dict)


class SlabSink(ProductSink):
    """The sink of a product whose operands, and C, lie in the slab as they do in the service."""

    def __init__(self, slab: Slab, names: tuple[str, ...]) -> None:
        super().__init__(cast("Service", None), ANONYMOUS, ProductOptions())
        self.sent, self.places, self._slab = names, dict[str, Array](), slab

    @property
    def names(self) -> tuple[str, ...]:
        return self.sent

    def describe_raw(self, wanted: ProductOptions) -> TensorSpecs:
        if self.sent != ONE:
            return super().describe_raw(wanted)
        return {ONE[0]: TensorSpec(ONE[0], wanted.dtype or "float32", (wanted.m or 2, wanted.n or 2))}

    def nbytes(self, found: TensorSpecs, wanted: ProductOptions) -> int:
        for each in found.values():
            check_shape(each)
        return super().nbytes(found, wanted) if len(found) > 1 else sum(each.nbytes for each in found.values())

    @contextmanager
    def allocate(self, found: TensorSpecs, wanted: ProductOptions, fill: Fill | None) -> Iterator[Places]:
        with lent(self._slab, max(1, self.nbytes(found, wanted))) as memory:
            memory[:] = b"\xff" * len(memory)
            at, places = 0, {}
            for name, each in found.items():
                flat = np.frombuffer(memory[at : at + each.nbytes], each.dtype)
                places[name], at = flat.reshape(each.shape), at + each.nbytes
            if fill is not None:
                fill(places)
            self.places = dict(places)
            yield places


class Counter:
    """Takes requests in one after the other; all slab bytes must be back after each."""

    def __init__(self, slab: Slab) -> None:
        self.slab, self._loop, self._threads = slab, asyncio.new_event_loop(), RequestThreads()

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def take(self, sent: Sent) -> Taken:
        try:
            taken = Taken(200, operands=self._loop.run_until_complete(self._taken(sent)))
        except TilewiseError as error:
            taken = Taken(error.status, error.code, error.facts)
        assert not self.slab.lent_bytes
        return taken

    async def _taken(self, sent: Sent) -> Mapping[str, Array]:
        messages = sent.messages()

        async def message() -> dict[str, Any]:
            return next(messages)

        state = SimpleNamespace(tilewise=replace(State.new(TransferLimits()), threads=self._threads))
        scope = {"type": "http", "headers": sent.headers(), "app": SimpleNamespace(state=state)}
        request = Request(scope, cast("Callable[[], Awaitable[Any]]", message))
        sink = SlabSink(self.slab, sent.names)
        async with AsyncExitStack() as stack:
            lend = partial(lent, self.slab)
            context = BodyContext(sink, lend, self._threads, stack, MOST, self.slab.nbytes, SlowTransfers())
            await receive(request, media_of(request, sent.names), sent.wanted, context)
            copies = {name: array.copy() for name, array in sink.places.items()}
            sink.places = {}
        return copies
