"""What a body reader needs: a sink for operands, staging memory, a thread pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from starlette.requests import Request

from app.api.body.stream import Body, Lend, StagedBody
from app.api.body.upload_overlap import UploadOverlap
from app.api.formats.operand_spec import Fill, ParsedBody, Places, ProductOptions, TensorSpecs
from app.api.state import service_of, threads_of
from app.devices.slab import Slab
from app.errors import TooLarge
from app.server.thread_pool import RequestThreads
from app.services.matmul.chunked_transfer import ChunkedTransfer

RAW: Final = "application/octet-stream"


class OperandSink(Protocol):
    """Whose matrices a body has, and where they go."""

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called: a, b, both or neither of a product; ONE where only one matrix is wanted."""
        ...

    @property
    def passage(self) -> ChunkedTransfer | None:
        """The copies to and from the device that go on meanwhile, once there are places for a large product."""
        ...

    def plain(self, wanted: ProductOptions) -> TensorSpecs:
        """What bytes without a header are, in their order; raises Invalid where the query does not tell."""
        ...

    def nbytes(self, found: TensorSpecs, wanted: ProductOptions) -> int:
        """Bytes of the slab that they, and what is made of them, will take; raises InvalidMatrix, Invalid."""
        ...

    def room(self, found: TensorSpecs, wanted: ProductOptions, fill: Fill | None) -> AbstractContextManager[Places]:
        """Lend places, filled where it is known with what; raises what the slab and the matrices' owner refuse."""
        ...

    def is_fresh(self) -> bool:
        """Whether the system has yet to find pages of the places that were lent unfilled."""
        ...

    def back(self) -> None:
        """Have them found before anything lands there, which blocks; raises NoRoom."""
        ...


@dataclass
class BodyContext:
    """What a body reader needs: a sink for operands, staging memory, threads, and the stack that releases them."""

    sink: OperandSink
    lend: Lend
    threads: RequestThreads
    stack: AsyncExitStack
    max_body_bytes: int
    slab_bytes: int
    _feed: UploadOverlap | None = field(default=None, init=False)

    async def placed(self, found: TensorSpecs, wanted: ProductOptions, fill: Fill | None = None) -> Places:
        """Places for matrices, until the stack closes; raises TooLarge, NoRoom, Unsupported."""
        size, room = self.sink.nbytes(found, wanted), self.sink.room(found, wanted, fill)
        places = await self.stack.enter_async_context(self.threads.entered(room, size if fill else 0))
        if self.sink.is_fresh():
            await self.threads.call(self.sink.back)
        return places

    async def landed(self, body: Body, name: str, view: memoryview) -> None:
        """Have a matrix's bytes land in its place; raises as Body.fill.

        What has landed of a large product's operands is on its way to the device before the rest has come.
        """
        if self._feed is None:
            self._feed = UploadOverlap(self.sink.passage, self.threads, self.stack)
        await self._feed.fill(body, name, view)

    async def filled(self, loaded: ParsedBody, area: StagedBody) -> None:
        """Places for what was understood beside a body that is whole; raises TooLarge, NoRoom, Unsupported."""
        self.expect(loaded.found, loaded.wanted, area.lent_bytes + loaded.beside)
        await self.placed(loaded.found, loaded.wanted, loaded.fill)

    def expect(self, found: TensorSpecs, wanted: ProductOptions, beside: int) -> None:
        """Refuse what can never be read with so many other bytes beside it; raises TooLarge."""
        size = beside + self.sink.nbytes(found, wanted)
        if size > self.slab_bytes:
            message = f"what is sent and made takes {size} bytes with its copies: send {RAW}, which needs none"
            raise TooLarge(message, limit=self.slab_bytes, size=size)


def body_context(request: Request, sink: OperandSink, stack: AsyncExitStack) -> BodyContext:
    """The context in which a request's body is read."""
    service, threads = service_of(request), threads_of(request)
    slab = service.fleet.slab
    return BodyContext(sink, partial(lent, slab), threads, stack, service.matmul.max_bytes, slab.nbytes)


@contextmanager
def lent(slab: Slab, nbytes: int) -> Iterator[memoryview]:
    """Slab bytes for a body that is not understood yet: they count as every other operand's do."""
    region = slab.lend(nbytes)
    try:
        yield slab.view(region)[:nbytes]
    finally:
        slab.release(region)
