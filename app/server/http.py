"""HttpParser: heads, chunked bodies and pipelined requests of one connection, parsed by httptools."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import httptools
from starlette.responses import Response
from starlette.types import Scope
from uvicorn import Config
from uvicorn.server import ServerState

from app.observability import request_context
from app.observability.limited_log import LimitedLog
from app.observability.request_context import RequestContext, context_of
from app.server.peer import PRINCIPAL, Authenticator, Peer
from app.server.request import (
    EXTENSION,
    Connection,
    ErrorResponse,
    RequestCycle,
    RequestHead,
    StreamingCycle,
    lines_of,
    rendered,
)

_LOG: Final = logging.getLogger(__name__)
HEAD: Final = 2**16  # bytes of a request's head, and of what is no data in a chunked body, in a row
LINGER: Final = 2.0  # seconds in which a client that still sends may hear why it was refused
_END: Final = b"\r\n\r\n"
_ENDLESS: Final = 2**62  # bytes to drop of a body whose length nobody knows
_CODES: Final = {
    400: "bad_request",
    408: "request_timeout",
    431: "request_header_fields_too_large",
    501: "not_implemented",
    505: "http_version_not_supported",
}
_SPOKEN: Final = ("HTTP/1.0", "HTTP/1.1")
_VERSION: Final = re.compile("HTTP/[0-9]+[.][0-9]+")
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class PendingAdmissions:
    """Products that were just let in, so that their places are not taken yet, and the bytes that they need."""

    products: int = 0
    nbytes: int = 0


# Of a method, a URL, a body's length and who is let in with it: the refusal, or None if it is let in.
AdmissionCheck: TypeAlias = Callable[[bytes, bytes, int, PendingAdmissions], Response | None]


class Unserved(ValueError):
    """A head that is answered with a status of its own rather than 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class _BodyEvents:
    """What a parser calls that reads a body alone."""

    def __init__(self, http: HttpParser) -> None:
        self.on_body, self.on_message_complete = http.on_body, http.on_message_complete


class InvalidRequests:
    """Notes what has not become a request, with who sent it; `count` is told each one's status."""

    def __init__(self, count: Callable[[int], None] = lambda _: None) -> None:
        self._log, self._count = LimitedLog(_LOG), count

    def note(self, peer: Peer, status: int, message: str) -> None:
        """Count one, and log it unless there were too many in this minute."""
        self._count(status)
        self._log.warning("%s is answered %d: %s", peer.address or f"user {peer.uid}", status, message)


class HttpParser:
    """The requests of one connection. `begun` is set when a head is complete, `streams` until a chunked body is whole.

    A body of declared length never comes here. Of what follows a chunked one the parser sees nothing before the answer
    is complete: it would be parsed, and kept, without bound.
    """

    def __init__(
        self,
        connection: Connection,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        admission: AdmissionCheck,
        error: ErrorResponse,
        authenticate: Authenticator | None = None,
        invalid: InvalidRequests | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._connection, self._config, self._server, self._loop = connection, config, server_state, loop
        self._app_state, self._admission, self._error, self._authenticate = app_state, admission, error, authenticate
        self._invalid = invalid or InvalidRequests()
        self._url, self._headers, self._expects_continue = b"", list[tuple[bytes, bytes]](), False
        self._context: RequestContext | None = None  # of the request whose head was complete last
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""
        self._tail, self._idle, self._head = b"", 0, list[bytes]()
        self._keep_alive: asyncio.TimerHandle | None = None
        self._parser = self._renewed()
        self.cycle: RequestCycle | None = None
        self.begun = self.streams = False

    @property
    def is_busy(self) -> bool:
        """Whether a request has begun and is not answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def feed(self, data: bytes) -> None:
        """Parse bytes; what is no HTTP is answered with 400."""
        self._expect_no_next()
        if not self.streams:
            self._head.append(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self.streams:  # there is nothing to upgrade to: the body comes still, and the connection ends with it
                self._parser = httptools.HttpRequestParser(_BodyEvents(self))
                self._parser.feed_data(_CHUNKED_HEAD)
        except httptools.HttpParserError as error:
            fault = error.__context__
            unserved = fault if isinstance(fault, Unserved) else _unspoken(self._request_line())
            self.refuse(unserved.status, unserved.message)

    def shutdown(self) -> None:
        """End the connection, once the request under way is answered; where none ever was, one may be on its way."""
        if self.cycle is None:
            answer = self._error(HTTPStatus.SERVICE_UNAVAILABLE, "closing", "the service is shutting down")
            self._connection.write(rendered(answer, self._answer_lines(), closes=True))
            self._connection.turned_away(_ENDLESS, stays=False)
        elif self.cycle.response_complete:
            self._connection.transport.close()
        else:
            self.cycle.close_after()

    def disconnect(self) -> None:
        """Tell the request that the client is gone."""
        self._expect_no_next()
        if self.cycle is not None:
            self.cycle.disconnect()

    def forget(self) -> None:
        """Let go of a connection that is lost and of its last request, which refer to this: all are freed at once then.

        The garbage collector, which would have to find them, stops every request: for a tenth of a second if ten
        connections a product come and go.
        """
        del self._connection, self.cycle, self._parser

    def until_end(self, data: bytes, start: int = 0) -> int:
        """Where the next blank line ends in what has come, or the end: no head and no chunked body ends elsewhere."""
        kept, self._tail = self._tail, b""
        early = (kept + data[: len(_END) - 1]).find(_END)
        if early >= 0:
            return early + len(_END) - len(kept)
        at = data.find(_END, start)
        if at >= 0:
            return at + len(_END)
        self._tail = (kept + data[max(start, len(data) - len(_END) + 1) :])[1 - len(_END) :]
        return len(data)

    def stream(self, data: bytes) -> int:
        """Parse bytes of a chunked body, and none behind its end; gives how many."""
        at, transport = 0, self._connection.transport
        while self.streams and at < len(data) and not transport.is_closing():
            end = self.until_end(data, at)
            self._idle += end - at
            self.feed(data[at:end])
            at = end
            if self._idle > HEAD and not transport.is_closing():
                self.refuse(431, f"a chunked body has more than {HEAD} bytes in a row that are no data")
        return at

    def on_message_begin(self) -> None:
        """For the parser: a head begins."""
        self._url, self._headers, self._expects_continue, self._context = b"", [], False, None

    def on_url(self, url: bytes) -> None:
        """For the parser: a part of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """For the parser: a header, or a trailer, which is dropped: no field read here may be one (RFC 9110, 6.5.1)."""
        if self.streams:
            return
        name = name.lower()
        self._expects_continue = self._expects_continue or (name == b"expect" and value.lower() == b"100-continue")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """For the parser: a head is complete. Start its request, or refuse it; what they log has its id."""
        if (line := self._request_line()).rpartition(" ")[2] not in _SPOKEN:
            raise _unspoken(line)
        self._head.clear()
        chunked, length = self._framing()
        self._context = context_of(self._headers)
        token = request_context.assign(self._context)
        try:
            self._begin(self._scope(), chunked, length)
        finally:
            request_context.restore(token)

    def on_body(self, body: bytes) -> None:
        """For the parser: data of a chunked body."""
        self._idle = 0
        if self.cycle is not None:
            self.cycle.add_chunk(body)

    def on_message_complete(self) -> None:
        """For the parser: a request is whole; one that was turned away has no cycle."""
        if self.streams and self._parser.should_upgrade():
            return  # the parser takes what follows for another protocol's
        self.streams = False
        if self.cycle is not None:
            self.cycle.end_body()

    def refuse(self, status: int, message: str) -> None:
        """Answer what has not become a request, or one that breaks off before its answer has begun, and close."""
        cycle, transport = self.cycle, self._connection.transport
        answered = self.streams and cycle is not None and cycle.response_started
        if cycle is not None and not cycle.response_complete:
            cycle.disconnect()  # nothing may follow this answer, nor the part of its own that has left
        if not answered:
            self._invalid.note(self._connection.peer, status, message)
            answer = self._error(status, _CODES[status], message)
            self._connection.write(rendered(answer, self._answer_lines(), closes=True))
        transport.close()

    def _begin(self, scope: Scope, chunked: bool, length: int) -> None:
        """Start a request, or refuse it."""
        refused = self._refused(scope, None if chunked else length)
        if refused is not None:
            self._turn_away(refused, None if chunked else length)
            return
        stays = self._is_persistent() and not self._parser.should_upgrade()  # there is nothing to upgrade to
        waits = self._expects_continue and scope["http_version"] != "1.0"  # RFC 9110, section 10.1.1
        head = RequestHead(scope, self._answer_lines(), stays, waits)
        made = (head, self._connection, self._answered)
        self.cycle = StreamingCycle(*made, length) if length else RequestCycle(*made)
        self.begun, self.streams, self._idle = True, chunked, 0
        task = self._loop.create_task(self.cycle.run(self._config.loaded_app, self._error))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _answer_lines(self) -> bytes:
        """What every answer has: the server's headers, which change once a second, and the request's id."""
        if self._default_headers is not self._server.default_headers:
            self._default_headers = self._server.default_headers
            self._default_lines = lines_of(self._default_headers)
        self._context = self._context or context_of(self._headers)
        return b"%bx-request-id: %b\r\n" % (self._default_lines, self._context.request_id.encode())

    def _answered(self) -> None:
        """The answer is complete: go on with what the connection has."""
        cycle = self.cycle
        if isinstance(cycle, StreamingCycle):
            self._parser = self._renewed()  # the old one still waits for the body
        self._server.total_requests += 1
        if cycle is not None and not self._connection.transport.is_closing():
            self._expect_next()
            self._connection.answered(cycle)

    def _refused(self, scope: Scope, length: int | None) -> Response | None:
        """The refusal of a request for who asks, or because there is no room; None if it is let in.

        A chunked body's length is None: it takes no room before it comes.
        """
        if self._authenticate is not None:
            decided = self._authenticate(scope, self._connection.peer)
            if isinstance(decided, Response):
                return decided
            scope["extensions"][PRINCIPAL] = decided
        if length is None:
            return None
        return self._admission(self._parser.get_method(), self._url, length, PendingAdmissions())

    def _turn_away(self, answer: Response, length: int | None) -> None:
        """Answer a request that does not begin; what comes of its body is dropped.

        The connection ends with a chunked body, which nobody parses, and with one that only the client knows to come.
        """
        stays = self._is_persistent() and not self._expects_continue and length is not None
        self._connection.write(rendered(answer, self._answer_lines(), closes=not stays))
        if stays:
            self._parser = self._renewed()  # the old one waits for the body
            self._server.total_requests += 1
            self._expect_next()
        self._connection.turned_away(_ENDLESS if length is None else length, stays)

    def _expect_next(self) -> None:
        """Close the connection if no further request begins in time."""
        self._expect_no_next()
        self._connection.flow.resume_reading()
        self._keep_alive = self._loop.call_later(self._config.timeout_keep_alive, self._connection.transport.close)

    def _expect_no_next(self) -> None:
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            self._keep_alive = None

    def _is_persistent(self) -> bool:
        return self._parser.get_http_version() != "1.0" and self._parser.should_keep_alive()

    def _scope(self) -> Scope:
        """The request's head as ASGI has it; raises ValueError, which the parser turns into a refusal."""
        url, connection, root = httptools.parse_url(self._url), self._connection, self._config.root_path
        path = url.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "server": connection.server_address,
            "client": connection.client_address,
            "scheme": connection.scheme,
            "method": self._parser.get_method().decode("ascii"),
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": root.encode("ascii") + url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "state": self._app_state.copy(),
            "extensions": {EXTENSION: connection, request_context.EXTENSION: self._context},
        }

    def _renewed(self) -> httptools.HttpRequestParser:
        """A parser that knows of no request; a request that ends the connection may be followed by others."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _framing(self) -> tuple[bool, int]:
        """Whether the body is chunked, and its declared length, which all who read the headers find as a plain number.

        Raises ValueError, which the parser turns into a refusal, and Unserved for a coding but chunked.
        """
        chunked, length = False, 0
        for at, (name, value) in enumerate(self._headers):
            if name == b"content-length":
                if not (digits := value.strip(b" \t")).isdigit():
                    raise ValueError(f"{value!r} is no length")
                length = int(digits)
                self._headers[at] = name, b"%d" % length
            elif name == b"transfer-encoding":
                self._expect_chunked(value)
                chunked = True
        return chunked, length

    def _expect_chunked(self, value: bytes) -> None:
        """Refuse what a body is coded with, unless it is chunked, once, of HTTP/1.1 (RFC 9112, section 6.1)."""
        if self._parser.get_http_version() == "1.0":
            raise ValueError("HTTP/1.0 has no Transfer-Encoding")
        for coding in value.lower().split(b","):
            if coding.strip(b" \t") not in {b"", b"chunked"}:
                raise Unserved(501, "the body's Transfer-Encoding is not chunked alone")

    def _request_line(self) -> str:
        """The first line of the head that is being parsed, as far as it has come."""
        come = self._head[0] if len(self._head) == 1 else b"".join(self._head)
        return come.lstrip(b"\r\n").partition(b"\r\n")[0].decode("latin-1")


def _unspoken(line: str) -> Unserved:
    """Why a request of this first line is none that is served."""
    version = line.rpartition(" ")[2]
    if _VERSION.fullmatch(version) and version not in _SPOKEN:
        return Unserved(505, f"the request is of {version}, which is not spoken here: use HTTP/1.1")
    return Unserved(400, "what was sent is no HTTP request")
