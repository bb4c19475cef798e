"""One connection: opened, written from where the bytes lie, read into where they belong. Flows, nothing blocks."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Final

from tilewise._http1 import HEAD_END, LONGEST_HEAD, ResponseHead, parse_head
from tilewise._sansio import READ, WRITE, Flow, Pause, Resolve, Wait
from tilewise.errors import UnreadableAnswer

_MOST_PIECES: Final = 1024  # IOV_MAX
_TURN: Final = 2**22  # bytes moved without a wait before others have their turn
_PIECE: Final = 2**14
LONGEST_ERROR: Final = 2**20  # bytes of an error that are read
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_GONE: Final = (BrokenPipeError, ConnectionResetError)
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens: a host and port, or the path of a Unix socket; with TLS where `tls` is given."""

    host: str
    port: int
    path: str | None = None
    tls: ssl.SSLContext | None = None

    @property
    def local(self) -> bool:
        """Whether it looks like this very machine."""
        return self.path is not None or self.host in {"localhost", "::1"} or self.host.startswith("127.")


class Connection:
    """A connected socket that does not block, with what it has received and nobody has read yet."""

    def __init__(self, sock: socket.socket, patience: float) -> None:
        self.sock, self.patience = sock, patience
        self._ahead = bytearray()
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._moved = 0

    def close(self) -> None:
        """Close it, whatever is on its way."""
        self.sock.close()

    @property
    def spent(self) -> bool:
        """Whether something has come that nobody asked for, the end of an idle connection above all."""
        if self._ahead:
            return True
        try:
            return self.sock.recv(1, 0 if self._tls else socket.MSG_PEEK) is not None
        except _WOULD_BLOCK:
            return False
        except OSError:
            return True

    def send(self, pieces: Iterable[memoryview]) -> Flow[bool]:
        """Send all of it; False if the service has answered, or hung up, before it had come."""
        queue = deque(piece for piece in pieces if piece.nbytes)
        while queue:
            try:
                count = self._sent(queue)
            except ssl.SSLWantReadError:
                yield Wait(self.sock, READ, self.patience)
                continue
            except (BlockingIOError, ssl.SSLWantWriteError):
                ready = yield Wait(self.sock, READ | WRITE, self.patience)
                if ready & READ and self._heard():
                    return False
                continue
            except _GONE:
                # A body that is refused is not read to its end: the answer may stand in the socket already.
                return False
            _drop(queue, count)
            yield from self._turn(count)
        return True

    def receive(self, view: memoryview) -> Flow[int]:
        """Receive something into `view`, and say how much; nothing once the service has hung up."""
        if not self._ahead:
            return (yield from self._arrived(view))
        count = min(len(self._ahead), view.nbytes)
        view[:count] = self._ahead[:count]
        del self._ahead[:count]
        return count

    def until(self, mark: bytes, deadline: float = inf) -> Flow[bytes]:
        """Receive up to `mark`, and give what stands before it; raises TimeoutError if it has not come by then."""
        piece = memoryview(bytearray(_PIECE))
        while (end := self._ahead.find(mark)) < 0:
            if len(self._ahead) > LONGEST_HEAD:
                raise UnreadableAnswer("the answer's head has no end", None, "unreadable")
            count = yield from self._arrived(piece, deadline)
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, "the service hung up")
            self._ahead += piece[:count]
        found = bytes(self._ahead[:end])
        del self._ahead[: end + len(mark)]
        return found

    def head(self) -> Flow[ResponseHead]:
        """The next answer's head; what only says that one will come is skipped, and makes nobody wait for longer."""
        deadline = monotonic() + self.patience
        while True:
            head = parse_head((yield from self.until(HEAD_END, deadline)))
            if head.status >= 200:  # noqa: PLR2004 - below stands what precedes an answer
                return head
            if monotonic() > deadline:
                raise TimeoutError

    def _sent(self, queue: deque[memoryview]) -> int:
        if self._tls:
            return self.sock.send(queue[0])
        return self.sock.sendmsg([queue[number] for number in range(min(len(queue), _MOST_PIECES))])

    def _arrived(self, view: memoryview, deadline: float = inf) -> Flow[int]:
        while True:
            try:
                count = self.sock.recv_into(view)
            except _WOULD_BLOCK as block:
                patience = max(0.0, min(self.patience, deadline - monotonic()))
                yield Wait(self.sock, WRITE if isinstance(block, ssl.SSLWantWriteError) else READ, patience)
            except ssl.SSLEOFError:
                return 0
            else:
                yield from self._turn(count)
                return count

    def _heard(self) -> bool:
        """Whether an answer, or an end, has come while we were sending."""
        try:
            came = self.sock.recv(_PIECE)
        except _WOULD_BLOCK:
            return False
        except OSError:
            return True
        self._ahead += came
        return True

    def _turn(self, count: int) -> Flow[None]:
        self._moved += count
        if self._moved >= _TURN:
            self._moved = 0
            yield Pause()


class Body:
    """An answer's body as it comes."""

    def __init__(self, connection: Connection, head: ResponseHead) -> None:
        framing = head.framing()
        self._connection = connection
        self._chunked = framing == "chunked"
        self.length = framing if isinstance(framing, int) else None
        self._left: int | None = 0 if self._chunked else self.length
        self.ended = self.length == 0
        self.reusable = head.persistent and (self._chunked or self.length is not None)

    def some(self, view: memoryview) -> Flow[int]:
        """Receive some of it into `view`, and say how much; nothing at its end."""
        if self._chunked and not self._left and not self.ended:
            yield from self._chunk()
        if self.ended:
            return 0
        room = view if self._left is None else view[: self._left]
        count = yield from self._connection.receive(room)
        if self._left is None:
            self.ended = not count
        elif not count:
            raise ConnectionResetError(errno.ECONNRESET, "the answer was cut short")
        else:
            self._left -= count
            if not self._left and self._chunked:
                _empty((yield from self._connection.until(b"\r\n")))
            self.ended = not self._left and not self._chunked
        return count

    def fill(self, view: memoryview) -> Flow[int]:
        """Receive until `view` is full or the body ends, and say how much that is."""
        done = 0
        while done < view.nbytes:
            count = yield from self.some(view[done:])
            if not count:
                break
            done += count
        return done

    def whole(self) -> Flow[bytes]:
        """All that is left of it."""
        found, piece = bytearray(), memoryview(bytearray(_PIECE if self.length is None else min(self.length, 2**20)))
        while count := (yield from self.some(piece)):
            found += piece[:count]
        return bytes(found)

    def excerpt(self) -> Flow[bytes]:
        """What is left of it, where that is no more than an error's or an end's; a longer or slower one is cut off."""
        found, piece = bytearray(), memoryview(bytearray(_PIECE))
        deadline = monotonic() + self._connection.patience
        while len(found) < LONGEST_ERROR and monotonic() < deadline and (count := (yield from self.some(piece))):
            found += piece[:count]
        return bytes(found)

    def _chunk(self) -> Flow[None]:
        line = _CHUNK.fullmatch((yield from self._connection.until(b"\r\n")))
        if line is None:
            raise UnreadableAnswer("the answer's chunks cannot be read", None, "unreadable")
        self._left = int(line[1], 16)
        while not self._left and not self.ended:  # the last chunk: trailers, then an empty line
            self.ended = not (yield from self._connection.until(b"\r\n"))


def _empty(line: bytes) -> None:
    if line:
        raise UnreadableAnswer("the answer's chunks cannot be read", None, "unreadable")


def connect(place: Address, patience: float) -> Flow[Connection]:
    """Connect, by the first address that takes it; raises OSError."""
    addresses = [(socket.AF_UNIX, place.path)] if place.path else []
    for family, *_, address in [] if place.path else (yield Resolve(place.host, place.port)):
        addresses.append((family, address))
    failure: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            yield from _connected(sock, address, patience)
            return Connection((yield from _secured(sock, place, patience)), patience)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _connected(sock: socket.socket, address: Any, patience: float) -> Flow[None]:
    code = sock.connect_ex(address)
    while code == errno.EAGAIN and sock.family == socket.AF_UNIX and patience > 0:  # its backlog is full
        yield Pause(0.01)
        patience -= 0.01
        code = sock.connect_ex(address)
    if code == errno.EINPROGRESS:
        yield Wait(sock, WRITE, patience)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _secured(sock: socket.socket, place: Address, patience: float) -> Flow[socket.socket]:
    if place.tls is None:
        return sock
    secure = place.tls.wrap_socket(sock, server_hostname=place.host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                yield Wait(secure, READ, patience)
            except ssl.SSLWantWriteError:
                yield Wait(secure, WRITE, patience)
            else:
                return secure
    except BaseException:
        secure.close()
        raise


def _drop(queue: deque[memoryview], count: int) -> None:
    """Take what was sent off the front."""
    while count:
        first = queue[0]
        if count < first.nbytes:
            queue[0] = first[count:]
            return
        count -= first.nbytes
        queue.popleft()
