"""StreamingCycle: uvicorn's request cycle for a body of declared length, which is a source of bytes."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, cast

from starlette.requests import ClientDisconnect
from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION: Final = "tilewise.connection"  # of a request's scope: its connection
_PIECE: Final = 2**18  # bytes of a body that is read as messages, at once
_NOWHERE: Final = memoryview(b"")


class Connection(Protocol):
    """What a request asks of its connection."""

    @property
    def held(self) -> int:
        """Bytes that came before they were asked for."""
        ...

    def early(self, most: int) -> bytes:
        """Bytes that came before they were asked for."""
        ...

    def regulate(self) -> None:
        """Read from the socket or leave it, as somebody wants bytes or not."""
        ...

    def answered(self, cycle: RequestResponseCycle) -> None:
        """Go on with the next request."""
        ...

    def turned_away(self, length: int, stays: bool) -> None:
        """Drop so many bytes; then go on with the next request where the connection stays, or close."""
        ...


class StreamingCycle(RequestResponseCycle):
    """One such request and its answer. `left` bytes have not been handed over, `place` is where the next ones land."""

    received: int
    left: int
    lingers: bool
    place: memoryview
    waiting: asyncio.Future[None] | None
    _connection: Connection

    @classmethod
    def of(cls, cycle: RequestResponseCycle, connection: Connection, length: int) -> StreamingCycle:
        """Turn uvicorn's cycle, which is made deep inside a method of its own, into one of these."""
        cycle.__class__ = cls
        self = cast("StreamingCycle", cycle)
        self.received, self.left, self.lingers = 0, length, False
        self.place, self.waiting, self._connection = _NOWHERE, None, connection
        return self

    async def receive(self) -> Any:
        """The body for whoever reads it as messages, then word of the client's going."""
        if not self.left:
            return await super().receive()
        piece = await self.take(_PIECE)
        return {"type": "http.request", "body": piece, "more_body": bool(self.left)}

    async def send(self, message: Message) -> None:  # type: ignore[override]  # the same messages, typed otherwise
        """As uvicorn does; where the connection ends while its client still sends, it stays until that one has heard.

        A system that closes a socket with bytes unread tells the client of a reset, and the answer may be lost.
        """
        begins = message["type"] == "http.response.start" and bool(self.left)
        if begins and self.waiting_for_100_continue:
            self.keep_alive = False  # only the client knows whether the body will come
        await super().send(cast("Any", message))
        if begins and not self.keep_alive:
            self.lingers = self.keep_alive = True

    def has(self, nbytes: int) -> bool:
        """Whether so many bytes, or all that are left, came before they were asked for."""
        return min(nbytes, self.left) <= self._connection.held

    async def take(self, most: int) -> bytes:
        """At least one byte, at most `most`; none once the body has ended. Raises ClientDisconnect."""
        while not (piece := self._early(most)) and self.left:
            await self._wait()
        return piece

    async def land(self, view: memoryview) -> int:
        """Bytes into `view` until it is full or the body has ended; gives how many. Raises ClientDisconnect."""
        count = min(len(view), self.left)
        early = self._early(count)
        view[: len(early)] = early
        self.place = view[len(early) : count]
        try:
            while self.place:
                await self._wait()
        finally:
            self.place = _NOWHERE
        return count

    def landed(self, nbytes: int) -> None:
        """Count bytes that the socket has written to the place."""
        self.received += nbytes
        self.left -= nbytes
        self.place = self.place[nbytes:]
        if not self.place:
            self.wake()

    @property
    def waits(self) -> bool:
        """Whether somebody waits for bytes and has not been woken yet."""
        return self.waiting is not None and not self.waiting.done()

    def wake(self) -> None:
        """Let whoever waits for bytes look again."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def _early(self, most: int) -> bytes:
        piece = self._connection.early(min(most, self.left))
        if piece:
            self.waiting_for_100_continue = False
            self.received += len(piece)
            self.left -= len(piece)
        return piece

    async def _wait(self) -> None:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.waiting = asyncio.get_running_loop().create_future()
            self._connection.regulate()
            try:
                await self.waiting
            finally:
                self.waiting = None
                self._connection.regulate()
        if self.disconnected or self.response_complete:
            raise ClientDisconnect
