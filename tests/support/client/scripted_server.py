"""A real socket server that answers each request with the next of the answers it was given."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, Self

CLOSE = b""
STALL = b"stall"


def answer(status: int, body: object = None, *, close: bool = False, **headers: str) -> bytes:
    """One whole HTTP answer; the body is bytes, or a value written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(data)}", *(f"{name}: {named[name]}" for name in named)]
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class Scripted:
    """Answers in order, over as many connections as the client opens.

    CLOSE hangs up instead of answering, and an answer that ends in STALL stops there without its last word.
    """

    answers: Sequence[bytes]
    tls: ssl.SSLContext | None = None
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        self._left = list(self.answers)
        self._open: list[socket.socket] = []
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for connection in self._open:
            connection.close()

    def heads(self) -> list[str]:
        """The first line of every request so far."""
        return [request.split(b"\r\n", 1)[0].decode() for request in self.requests]

    def hang_up(self) -> None:
        """Close the connections that are open, as a service does with idle ones."""
        for connection in self._open:
            connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._follow, args=(connection,), daemon=True).start()

    def _follow(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the client hangs up when it has seen enough
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        if self.tls is not None:
            connection = self.tls.wrap_socket(connection, server_side=True)
            self._open.append(connection)
        with connection, connection.makefile("rb") as lines:
            while head := _head(lines):
                sizes = [line[15:] for line in head.lower().splitlines() if line.startswith(b"content-length:")]
                body = lines.read(int(sizes[0]) if sizes else 0)
                with self._turn:
                    self.requests.append(head + body)
                    said = self._left.pop(0) if self._left else CLOSE
                connection.sendall(said.removesuffix(STALL))
                if said == CLOSE or b"\r\nConnection: close\r\n" in said:
                    return


def _head(lines: BinaryIO) -> bytes:
    """One request's lines up to the empty one; nothing where the client has hung up."""
    head: list[bytes] = []
    while (line := lines.readline()) not in {b"\r\n", b""}:
        head.append(line)
    return b"".join(head) if line else b""
