"""HalfClosedWatch: whether a client that has ended its side of a connection still reads the other."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Final, Protocol

_LOOK: Final = 0.25  # seconds between two looks; most answers are there before the first
_REPLY: Final = 0.05  # seconds in which the other end's system may say that nobody reads there
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed(Protocol):
    """A connection whose client has ended its side, as it is looked at."""

    transport: asyncio.Transport

    def takes_interim(self) -> bool:
        """Whether an interim response may be sent now."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...


class HalfClosedWatch:
    """Looks at a connection, from when its client has ended its side until `stop`, and closes it once nobody is there.

    A client that is gone and one that has only ended its side send the same. The first's system answers bytes that
    come all the same with a reset, so a client whose answer takes a while is sent an interim response, which every
    client of HTTP/1.1 skips (RFC 9110, section 15.2).
    """

    def __init__(self, connection: HalfClosed, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._loop = connection, loop
        peer: socket.socket = connection.transport.get_extra_info("socket")
        self._is_unix, self._poll = peer.family == socket.AF_UNIX, select.poll()
        self._poll.register(peer.fileno(), 0)
        self._sent = False
        self._timer = loop.call_later(_LOOK, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        connection = self._connection
        if self._poll.poll(0):  # errors and the end of both sides: nothing else was asked for
            connection.transport.abort()
            return
        sends = not (self._sent or self._is_unix) and connection.takes_interim()
        if sends:
            self._sent = True
            connection.write(_CONTINUE)
        self._timer = self._loop.call_later(_REPLY if sends else _LOOK, self._look)
