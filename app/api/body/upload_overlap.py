"""Overlaps copies with transfers: operands to the device while received, C from it while sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from anyio import CancelScope

from app.api.body.stream import Body
from app.server.thread_pool import RequestThreads
from app.services.matmul.chunked_transfer import PIECE, ChunkedTransfer


class UploadOverlap:
    """Has operands land in their places, and what has landed of them copied to the device where there is a passage.

    Nothing waits for these copies but the end of `stack`.
    """

    def __init__(self, passage: ChunkedTransfer | None, threads: RequestThreads, stack: AsyncExitStack) -> None:
        self._passage = passage if passage is not None and passage.is_open else None
        self._threads, self._stack = threads, stack
        self._landed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def fill(self, body: Body, name: str, view: memoryview) -> None:
        """Have an operand's bytes land in their place; raises as Body.fill."""
        if self._passage is None:
            await body.fill(view)
            return
        self._begin(self._passage)
        start = 0
        for end in [*range(PIECE, len(view), PIECE), len(view)]:
            await body.fill(view[start:end])
            start = end
            self._passage.landed(name, end)
            self._landed.set()

    def _begin(self, passage: ChunkedTransfer) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._push(passage))
            self._stack.push_async_callback(self._stop, passage, self._task)

    async def _push(self, passage: ChunkedTransfer) -> None:
        while passage.is_open:
            if passage.is_due:
                await self._threads.work(passage.push)
            else:
                self._landed.clear()
                await self._landed.wait()

    async def _stop(self, passage: ChunkedTransfer, task: asyncio.Task[None]) -> None:
        """Push nothing more, and wait until the slab is read by nobody."""
        passage.stop()
        self._landed.set()
        with CancelScope(shield=True):
            await task


class DownloadOverlap:
    """C's pieces, copied back one after the other from the start; `ended` is told the seconds once all are there."""

    def __init__(self, passage: ChunkedTransfer, threads: RequestThreads, ended: Callable[[float], None]) -> None:
        self.nbytes = passage.left
        self._passage, self._threads, self._ended = passage, threads, ended
        self._there, self._moved = 0, asyncio.Event()
        self._stopped = False
        self._task = asyncio.create_task(self._pull())

    async def until(self, nbytes: int) -> None:
        """Wait until so many of C's first bytes are in the slab; raises TilewiseError where they will not be."""
        while self._there < nbytes:
            if self._task.done():
                await self._task
            self._moved.clear()
            await self._moved.wait()

    async def stop(self) -> None:
        """Copy nothing more, and wait until the slab is written by nobody."""
        self._stopped = True
        with CancelScope(shield=True):
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # whoever waited for it has heard of it

    async def _pull(self) -> None:
        try:
            while self._there < self.nbytes and not self._stopped:
                self._there = await self._threads.work(self._passage.pull)
                self._moved.set()
        finally:
            self._moved.set()
        if self._there == self.nbytes:
            self._ended(self._passage.d2h)
