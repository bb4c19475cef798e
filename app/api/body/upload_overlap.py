"""Overlaps copies with transfers: operands to the device while received, C from it while sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from anyio import CancelScope

from app.api.body.stream import Body
from app.server.thread_pool import RequestThreads
from app.services.matmul.certificates.certificate import Certifier
from app.services.matmul.chunked_transfer import PIECE, ChunkedTransfer


class UploadOverlap:
    """Receives a product's operands into their buffers, and uploads meanwhile what was received of a large one.

    What certifies the product, if something does, is told how far they came. Nothing waits for the uploads but the end
    of `stack`.
    """

    def __init__(
        self,
        transfer: ChunkedTransfer | None,
        threads: RequestThreads,
        stack: AsyncExitStack,
        certifier: Certifier | None = None,
    ) -> None:
        self._transfer, self._threads, self._stack, self._certifier = transfer, threads, stack, certifier
        self._received = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def fill(self, body: Body, name: str, view: memoryview) -> None:
        """Receive an operand into its buffer; raises as Body.fill."""
        transfer = self._transfer if self._transfer is not None and self._transfer.is_open else None
        if transfer is None and self._certifier is None:
            await body.fill(view)
            return
        if transfer is not None:
            self._begin(transfer)
        start = 0
        ends = transfer.ends(name) if transfer is not None else [*range(PIECE, len(view), PIECE), len(view)]
        for end in ends:
            await body.fill(view[start:end])
            start = end
            if transfer is not None:
                transfer.mark_received(name, end)
                self._received.set()
            if self._certifier is not None:
                self._certifier.advance(name, end)

    def _begin(self, transfer: ChunkedTransfer) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._upload(transfer))
            self._stack.push_async_callback(self._stop, transfer, self._task)

    async def _upload(self, transfer: ChunkedTransfer) -> None:
        while transfer.is_open:
            if transfer.is_due:
                await self._threads.work(transfer.upload_next)
            else:
                self._received.clear()
                await self._received.wait()

    async def _stop(self, transfer: ChunkedTransfer, task: asyncio.Task[None]) -> None:
        """Upload nothing more, and wait until the slab is not read any more."""
        transfer.stop()
        self._received.set()
        with CancelScope(shield=True):
            await task


class DownloadOverlap:
    """Copies C back chunk by chunk while it is sent; `ended` is told the seconds once all of it is in the slab."""

    def __init__(self, transfer: ChunkedTransfer, threads: RequestThreads, ended: Callable[[float], None]) -> None:
        self.nbytes = transfer.pending_result_bytes
        self._transfer, self._threads, self._ended = transfer, threads, ended
        self._there, self._moved = transfer.downloaded_bytes, asyncio.Event()
        self._stopped = False
        self._task = asyncio.create_task(self._download())

    async def until(self, nbytes: int) -> int:
        """Wait until the first `nbytes` of C are in the slab; gives how many are.

        Raises TilewiseError if the copy fails.
        """
        while self._there < nbytes:
            if self._task.done():
                await self._task
            self._moved.clear()
            await self._moved.wait()
        return self._there

    async def stop(self) -> None:
        """Copy nothing more, and wait until the slab is not written any more."""
        self._stopped = True
        with CancelScope(shield=True):
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # a waiter has raised it

    async def _download(self) -> None:
        try:
            while self._there < self.nbytes and not self._stopped:
                self._there = await self._threads.work(self._transfer.download_next)
                self._moved.set()
        finally:
            self._moved.set()
        if self._there == self.nbytes:
            self._ended(self._transfer.d2h)
