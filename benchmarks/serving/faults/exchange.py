"""Bytes sent to the service as they are, and what comes back: no client's library minds what they say."""

from __future__ import annotations

import select
import socket
from typing import Final

_PIECE: Final = 2**18
_STATUS: Final = slice(9, 12)  # of "HTTP/1.1 200 OK"


def exchanged(port: int, request: bytes, seconds: float = 300) -> tuple[int, int]:
    """Send a request and read until the connection ends; gives the status, 0 for none, and the answer's bytes.

    An answer that comes before all is sent is read meanwhile.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.setblocking(False)
        rest, front, count = memoryview(request), b"", 0
        while True:
            readable, writable, _ = select.select([connection], [connection] if rest else [], [], seconds)
            if not (readable or writable):
                return 0, count
            try:
                if readable:
                    piece = connection.recv(_PIECE)
                    if not piece:
                        break
                    front, count = (front + piece)[:64], count + len(piece)
                if writable:
                    rest = rest[connection.send(rest[:_PIECE]) :]
            except (ConnectionResetError, BrokenPipeError):
                break
    text = front[_STATUS]
    return (int(text) if text.isdigit() else 0), count
