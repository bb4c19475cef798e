"""RequestCycle: one request and its answer over ASGI; StreamingCycle, its body of declared length as a byte source."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from app.server.bulk_transfer import LARGE, BulkSocket
from app.server.flow_control import FlowControl
from app.server.peer import Peer

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)
}
_NO_NAME: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")  # RFC 9110, section 5.6.2
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_BODILESS: Final = (204, 304)
_CLOSES: Final = b"connection: close\r\n"
EXTENSION: Final = "tilewise.connection"  # of a request's scope: its connection
# Of a status, a code and a message: the answer to what is no request, or was not answered.
ErrorResponse: TypeAlias = Callable[[int, str, str], Response]
_LOG: Final = logging.getLogger(__name__)
_PIECE: Final = 2**18  # bytes of a body that is read as messages, at once
_MAX_UNREAD: Final = 2**16  # bytes of a chunked body that are held before reading pauses
_CLOSING: Final = 503
_NOWHERE: Final = memoryview(b"")


def lines_of(headers: Headers) -> bytes:
    """Headers of our own as they are sent."""
    return b"".join([b"%b: %b\r\n" % field for field in headers])


def rendered(answer: Response, lines: bytes, *, closes: bool) -> bytes:
    """A whole answer with these lines before its own headers, for what has not become a request."""
    end = _CLOSES + b"\r\n" if closes else b"\r\n"
    return b"".join([_STATUS_LINES[answer.status_code], lines, lines_of(answer.raw_headers), end, bytes(answer.body)])


class ResponseEncoder:
    """One answer. `keep_alive` says whether the connection goes on after it; an answer's own header may end it.

    One of unknown length ends with the connection where the client knows no chunks (RFC 9112, section 6.1).
    """

    def __init__(self, method: str, *, keep_alive: bool, knows_chunks: bool = True) -> None:
        self.keep_alive, self._knows_chunks = keep_alive, knows_chunks
        self._has_body, self._chunks = method != "HEAD", False
        self._left: int | None = None  # bytes that the Content-Length still promises; None for an answer in chunks

    def head(self, status: int, headers: Headers, before: bytes = b"") -> bytes:
        """The status line, lines of headers `before`, and headers; raises RuntimeError for one that cannot be sent."""
        lines = [_STATUS_LINES[status], before]
        length, chunked, says_close = 0, None, False
        for name, value in headers:
            if _NO_NAME.search(name) or _NO_VALUE.search(value):
                raise RuntimeError(f"{name!r}: {value!r} is no header")
            lines.append(b"%b: %b\r\n" % (name, value))
            match name.lower():
                case b"content-length" if chunked is None:
                    length, chunked = int(value), False
                case b"transfer-encoding" if value.lower() == b"chunked":
                    length, chunked = 0, True
                case b"connection":
                    says_close = says_close or b"close" in value.lower().replace(b" ", b"").split(b",")
        is_endless = chunked is None and self._has_body and status not in _BODILESS
        self._chunks = chunked is True or (is_endless and self._knows_chunks)
        if is_endless and not self._knows_chunks:
            self.keep_alive = False
        if says_close:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(_CLOSES)
        if is_endless and self._knows_chunks:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._left = None if chunked or is_endless else length
        return b"".join([*lines, b"\r\n"])

    def body(self, data: bytes, *, ends: bool) -> bytes:
        """A piece of the body as it is sent; raises RuntimeError if the body is not as long as Content-Length says."""
        if not self._has_body:
            return b""
        if self._left is None and not self._chunks:
            return data
        if self._left is None:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            return chunk + b"0\r\n\r\n" if ends else chunk
        self._left -= len(data)
        if self._left < 0 or (ends and self._left):
            raise RuntimeError(
                f"the answer's body is {'longer' if self._left < 0 else 'shorter'} than its Content-Length"
            )
        return data


class RequestHead(NamedTuple):  # a frozen dataclass takes a microsecond longer, of 120 that a request takes
    """What a request's head says, and the headers that every answer has."""

    scope: Scope
    answer_lines: bytes
    keep_alive: bool
    expects_continue: bool


class Connection(Protocol):
    """What a request asks of its connection."""

    server_address: tuple[str, int | None] | None
    client_address: tuple[str, int] | None
    scheme: str
    peer: Peer

    @property
    def transport(self) -> asyncio.Transport:
        """Where its answer goes."""
        ...

    @property
    def flow(self) -> FlowControl:
        """The back-pressure of its transport."""
        ...

    @property
    def bulk(self) -> BulkSocket:
        """What moves large pieces in threads."""
        ...

    @property
    def held(self) -> int:
        """Bytes that came before they were asked for."""
        ...

    async def receive(self, view: memoryview) -> int:
        """Bytes that a thread has received into `view`: all of them, or fewer where the event loop is to go on."""
        ...

    async def transmit(self, data: memoryview) -> None:
        """Send many bytes of an answer; they are not read after it ends, unless the transport is to be aborted."""
        ...

    def early(self, most: int) -> bytes:
        """Bytes that came before they were asked for."""
        ...

    def regulate(self) -> None:
        """Read from the socket or leave it, as somebody wants bytes or not."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes of an answer."""
        ...

    def answered(self, cycle: RequestCycle) -> None:
        """Go on with the next request."""
        ...

    def turned_away(self, length: int, stays: bool) -> None:
        """Drop so many bytes; then go on with the next request if the connection stays, or close."""
        ...


class RequestCycle:
    """One request and its answer. A body, if it has one, comes in chunks and is read as messages."""

    def __init__(self, head: RequestHead, connection: Connection, answered: Callable[[], None]) -> None:
        self.disconnected = self.response_started = self.response_complete = False
        self.expects_continue = head.expects_continue
        self._head, self._connection, self._answered = head, connection, answered
        knows_chunks = head.scope["http_version"] != "1.0"
        self._encoder = ResponseEncoder(head.scope["method"], keep_alive=head.keep_alive, knows_chunks=knows_chunks)
        self._body, self._more_body = bytearray(), True
        self._changed = asyncio.Event()  # there is more to receive, or nothing any more

    async def run(self, app: ASGIApp, error: ErrorResponse) -> None:
        """Have the application answer; if it does not, answer `error`, or close if its answer has begun."""
        failure = (500, "internal_error", "the service has a fault; its log says which")
        try:
            await app(self._head.scope, self.receive, self.send)
        except asyncio.CancelledError:  # the server ends, and could not wait for this
            failure = (503, "closing", "the service is shutting down, and this took too long")
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the client is answered
            _LOG.error("the application failed", exc_info=raised)
        else:
            if not (self.response_complete or self.disconnected):
                _LOG.error("the application did not complete its answer")
        if self.response_started and not (self.response_complete or self.disconnected):
            self._connection.transport.close()
        elif not (self.response_started or self.disconnected):
            answer = error(*failure)
            headers = [*answer.raw_headers, (b"connection", b"close")]
            headers += [(b"retry-after", b"1")] if failure[0] == _CLOSING else []
            await self.send({"type": "http.response.start", "status": failure[0], "headers": headers})
            await self.send({"type": "http.response.body", "body": bytes(answer.body)})
        self._answered = _nothing  # it refers to the connection, which refers to this

    async def receive(self) -> Message:
        """A part of the body, or word that the client is gone or has its answer."""
        self._continue()
        if not self.disconnected and not self.response_complete:
            self._connection.flow.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Message) -> None:
        """The answer's head, then its body; raises RuntimeError for another order or for what HTTP cannot say."""
        flow, kind = self._connection.flow, message["type"]
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        if kind == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.response_started and not self.response_complete:
            body, ends = message.get("body", b""), not message.get("more_body", False)
            if ends or len(body) < LARGE:
                self._write(body, ends=ends)
            else:
                await self._connection.transmit(memoryview(self._encoder.body(body, ends=False)))
        else:
            raise RuntimeError(f"{kind} is out of turn")

    @property
    def takes_interim(self) -> bool:
        """Whether an interim response may be sent now: HTTP/1.0 has none (RFC 9110, section 15.2)."""
        return not self.response_started and self._head.scope["http_version"] != "1.0"

    def add_chunk(self, data: bytes) -> None:
        """Hold a part of the body until it is asked for; reading pauses if much is held."""
        if self.response_complete:
            return
        self._body += data
        if len(self._body) > _MAX_UNREAD:
            self._connection.flow.pause_reading()
        self._changed.set()

    def end_body(self) -> None:
        """Say that the body is whole."""
        if not self.response_complete:
            self._more_body = False
            self._changed.set()

    def disconnect(self) -> None:
        """Receive nothing more, and send nothing more."""
        self.disconnected = self.disconnected or not self.response_complete
        self._changed.set()

    def close_after(self) -> None:
        """End the connection with this answer."""
        self._encoder.keep_alive = False

    def _start(self, status: int, headers: Headers) -> None:
        head, scope = self._encoder.head(status, headers, self._head.answer_lines), self._head.scope
        self.response_started, self.expects_continue = True, False
        _LOG.debug("%s %s: %d", scope["method"], scope["path"], status)
        self._connection.write(head)

    def _write(self, data: bytes, *, ends: bool) -> None:
        self._connection.write(self._encoder.body(data, ends=ends))
        if ends:
            self.response_complete = True
            self._changed.set()
            if not self._stays():
                self._connection.transport.close()
            self._answered()

    def _stays(self) -> bool:
        """Whether the connection goes on after the answer."""
        return self._encoder.keep_alive

    def _continue(self) -> None:
        """Send 100 Continue to a client that waits for it with its body."""
        if self.expects_continue and not self._connection.transport.is_closing():
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.expects_continue = False


class StreamingCycle(RequestCycle):
    """A request whose body has a declared length. `left` bytes of it have not been handed over.

    `place` is the buffer for the next ones. `lingers`: the connection ends after the answer, but not before the client
    has sent the rest: a system that closes a socket with bytes unread resets it, and the answer may be lost.
    """

    def __init__(self, head: RequestHead, connection: Connection, answered: Callable[[], None], length: int) -> None:
        super().__init__(head, connection, answered)
        self.received, self.left, self.lingers = 0, length, False
        self.place = _NOWHERE
        self._waiting: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        """The body for whoever reads it as messages, then word of the client's going."""
        if not self.left:
            return await super().receive()
        piece = await self.take(_PIECE)
        return {"type": "http.request", "body": piece, "more_body": bool(self.left)}

    def has(self, nbytes: int) -> bool:
        """Whether so many bytes, or all that are left, came before they were asked for."""
        return min(nbytes, self.left) <= self._connection.held

    async def take(self, most: int) -> bytes:
        """At least one byte, at most `most`; none once the body has ended. Raises ClientDisconnect."""
        while not (piece := self._early(most)) and self.left:
            await self._wait()
        return piece

    async def receive_into(self, view: memoryview) -> int:
        """Bytes into `view` until it is full or the body has ended; gives how many. Raises ClientDisconnect."""
        count = min(len(view), self.left)
        early = self._early(count)
        view[: len(early)] = early
        self.place = view[len(early) : count]
        try:
            while self.place:
                if self._is_for_thread():
                    self._continue()
                    self.note_received(await self._connection.receive(self.place))
                if self.place:
                    await self._wait()
        finally:
            self.place = _NOWHERE
        return count

    def note_received(self, nbytes: int) -> None:
        """Count bytes that the socket has written to the place."""
        self.received += nbytes
        self.left -= nbytes
        self.place = self.place[nbytes:]
        if not self.place or self._is_for_thread():
            self.wake()

    @property
    def is_threaded(self) -> bool:
        """Whether threads receive large pieces."""
        return self._connection.bulk.takes(LARGE, self._connection.bulk.reading)

    @property
    def waits(self) -> bool:
        """Whether somebody waits for bytes and has not been woken yet."""
        return self._waiting is not None and not self._waiting.done()

    def wake(self) -> None:
        """Let whoever waits for bytes look again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _start(self, status: int, headers: Headers) -> None:
        unread = bool(self.left)
        if unread and self.expects_continue:
            self.close_after()  # only the client knows whether the body will come
        super()._start(status, headers)
        self.lingers = unread and not self._encoder.keep_alive

    def _stays(self) -> bool:
        return self.lingers or super()._stays()

    def _is_for_thread(self) -> bool:
        bulk = self._connection.bulk
        return not self.disconnected and bulk.takes(len(self.place), bulk.reading)

    def _early(self, most: int) -> bytes:
        piece = self._connection.early(min(most, self.left))
        if piece:
            self.expects_continue = False
            self.received += len(piece)
            self.left -= len(piece)
        return piece

    async def _wait(self) -> None:
        self._continue()
        if not self.disconnected and not self.response_complete:
            self._waiting = asyncio.get_running_loop().create_future()
            self._connection.regulate()
            try:
                await self._waiting
            finally:
                self._waiting = None
                self._connection.regulate()
        if self.disconnected or self.response_complete:
            raise ClientDisconnect


def _nothing() -> None:
    """What an answer that is complete is followed by."""
