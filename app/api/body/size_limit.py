"""ASGI middleware for the maximum body size, declared or counted."""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodySizeLimit:
    """Refuses bodies over `limit` bytes by `refuse(limit, size)`.

    A connection is not closed by a refusal: the server reads on and drops, so that a client which sends first and
    listens afterwards still hears why.
    """

    def __init__(self, app: ASGIApp, limit: int, refuse: Callable[[int, int], Response]) -> None:
        self._app, self._limit, self._refuse = app, limit, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, count, or just pass on."""
        length, chunked = _framing(scope) if scope["type"] == "http" else (0, False)
        if length > self._limit:
            await self._refuse(self._limit, length)(scope, receive, send)
        elif chunked:
            await _Counted(self._app, self._limit, self._refuse, receive, send).answer(scope)
        else:
            await self._app(scope, receive, send)


class _TooMuch(Exception):
    """The chunks so far are over the limit."""


class _Counted:
    """One request whose body has no declared length."""

    def __init__(
        self, app: ASGIApp, limit: int, refuse: Callable[[int, int], Response], receive: Receive, send: Send
    ) -> None:
        self._app, self._limit, self._refuse = app, limit, refuse
        self._receive, self._send = receive, send
        self._size = 0
        self._started = False

    async def answer(self, scope: Scope) -> None:
        try:
            await self._app(scope, self._counting, self._sending)
        except _TooMuch:
            if not self._started:
                await self._refuse(self._limit, self._size)(scope, self._receive, self._send)

    async def _counting(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise _TooMuch
        return message

    async def _sending(self, message: Message) -> None:
        if self._size > self._limit and not self._started:
            raise _TooMuch  # a handler on the way swallowed the exception
        self._started = True
        await self._send(message)


def _framing(scope: Scope) -> tuple[int, bool]:
    """The declared length, 0 if there is none, and whether the body comes in chunks."""
    length, chunked = 0, False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            length = int(value)
        elif name == b"transfer-encoding":
            chunked = True
    return length, chunked
