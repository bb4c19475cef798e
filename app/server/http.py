"""HttpParser: uvicorn's parsing of heads, chunked bodies and pipelined requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import httptools
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from app.server.request import EXTENSION, Connection, StreamingCycle

HEAD: Final = 2**16  # bytes of a request's head, and of what is no data in a chunked body, in a row
LINGER: Final = 2.0  # seconds in which a client that still sends may hear why it was refused
_END: Final = b"\r\n\r\n"
_CODES: Final = {400: "bad_request", 408: "request_timeout", 431: "request_header_fields_too_large"}


@dataclass(slots=True)
class PendingAdmissions:
    """Products that were just let in, so that their places are not taken yet, and the bytes that they need."""

    products: int = 0
    nbytes: int = 0


# Of a method, a URL, a body's length and who is let in with it: the refusal, or None where it is let in.
AdmissionCheck: TypeAlias = Callable[[bytes, bytes, int, PendingAdmissions], Response | None]
# Of a status, a code and a message: the answer to what has not become a request.
ErrorResponse: TypeAlias = Callable[[int, str, str], Response]


def rendered(answer: Response, state: ServerState, *, closes: bool) -> bytes:
    """An answer that no request of uvicorn's gives, whole, with the headers that every answer has."""
    fields = [*state.default_headers, *answer.raw_headers]
    lines = [name + b": " + value + b"\r\n" for name, value in fields]
    end = b"connection: close\r\n\r\n" if closes else b"\r\n"
    return b"".join([STATUS_LINE[answer.status_code], *lines, end, bytes(answer.body)])


class HttpParser(HttpToolsProtocol):
    """The requests of one connection. `begun` is set when a head is complete, `streams` until a chunked body is whole.

    A chunked body is the parser's, with uvicorn's control of its flow. Of what follows it the parser sees nothing
    before the answer is complete: it would be parsed, and kept, without bound.
    """

    def __init__(
        self,
        connection: Connection,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        gate: AdmissionCheck,
        error: ErrorResponse,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._connection, self._gate, self._error = connection, gate, error
        self.begun = self.streams = False
        self._tail, self._idle = b"", 0

    @property
    def is_busy(self) -> bool:
        """Whether a request has begun and is not answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def forget(self) -> None:
        """Let go of a connection that is lost and of its last request, which refer to this: all are freed at once then.

        The garbage collector, which would have to find them, stops every request: for a tenth of a second where ten
        connections a product come and go.
        """
        del self._connection, self.cycle, self.scope

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
        """Give the parser bytes of a chunked body, and none behind its end; gives how many."""
        at = 0
        while self.streams and at < len(data) and not self.transport.is_closing():
            end = self.until_end(data, at)
            self._idle += end - at
            self.data_received(data[at:end])
            at = end
            if self._idle > HEAD and not self.transport.is_closing():
                self.refuse(431, f"a chunked body has more than {HEAD} bytes in a row that are no data")
        return at

    def on_headers_complete(self) -> None:
        """Start the request; a body of declared length is its own affair."""
        chunked, length = self._framing()
        refused = None if chunked else self._gate(self.parser.get_method(), self.url, length, PendingAdmissions())
        if refused is not None:
            self._turn_away(refused, length)
            return
        super().on_headers_complete()
        self.begun, self.streams, self._idle = True, chunked, 0
        cast("dict[str, Any]", self.scope)["extensions"] = {EXTENSION: self._connection}
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # there is nothing to upgrade to: the answer ends the connection
        if length:
            StreamingCycle.of(self.cycle, self._connection, length)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn does, but drop trailers: no field that is read here may be one (RFC 9110, section 6.5.1)."""
        if not self.streams:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """As uvicorn does."""
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As uvicorn does, but of a first request that was turned away."""
        self.streams = False
        if self.cycle is not None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn does, then go on with what the connection has."""
        cycle = self.cycle
        if isinstance(cycle, StreamingCycle):
            self._renew()  # the old one still waits for the body
        super().on_response_complete()
        if not self.transport.is_closing():
            self._connection.answered(cycle)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the one shape of errors."""
        self.refuse(400, msg)

    def refuse(self, status: int, message: str) -> None:
        """Answer what has not become a request, or one that breaks off before its answer has begun, and close."""
        answered = self.streams and self.cycle.response_started
        if self.is_busy:
            self.cycle.disconnected = True  # nothing may follow this answer, nor the part of its own that has left
            self.cycle.message_event.set()
        if not answered:
            self.transport.write(self._refusal(status, message))
        self.transport.close()

    def _turn_away(self, answer: Response, length: int) -> None:
        """Answer a request that does not begin; what comes of its body is dropped."""
        is_persistent = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        stays = is_persistent and not self.expect_100_continue  # as Cycle.send has it
        self.transport.write(rendered(answer, self.server_state, closes=not stays))
        if stays:
            self._renew()  # the old parser waits for the body
            super().on_response_complete()
        self._connection.turned_away(length, stays)

    def _refusal(self, status: int, message: str) -> bytes:
        return rendered(self._error(status, _CODES[status], message), self.server_state, closes=True)

    def _renew(self) -> None:
        """Have a parser that knows of no request."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's first one is

    def _framing(self) -> tuple[bool, int]:
        """Whether the body is chunked, and its declared length, which all who read the headers find as a plain number.

        Raises ValueError, which the parser turns into a refusal.
        """
        chunked, length = False, 0
        for at, (name, value) in enumerate(self.headers):
            if name == b"content-length":
                if not (digits := value.strip(b" \t")).isdigit():
                    raise ValueError(f"{value!r} is no length")
                length = int(digits)
                self.headers[at] = name, b"%d" % length
            chunked = chunked or name == b"transfer-encoding"
        return chunked, length
