"""HTTP over the standard library: pooled connections, bodies sent and received without a copy, bounded retries."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

BUSY: Final = (429, 503)
LONGEST_PAUSE: Final = 10.0
# A host without a device has none a few seconds later either.
HOPELESS: Final = ("no_device",)

Failure = OSError | HTTPException
FAILURES: Final = (OSError, HTTPException)


class ClientError(Exception):
    """The service refused or failed: its status, the stable code, and the body (RFC 9457 members and figures).

    `status` is None where no answer came.
    """

    def __init__(self, message: str, status: int | None, code: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.body = dict(body or {})


class UnreachableError(ClientError):
    """No answer came: nothing listens there, the connection broke, or the time-out passed; code unreachable."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "unreachable")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `again` says that sending it twice does no harm, `patient` that a busy service is waited for.

    `timeout` is in seconds, None for the usual.
    """

    method: str
    target: str
    body: Sequence[memoryview] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    patient: bool = True
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `body` is empty where it was read into the caller's memory."""

    status: int
    headers: HTTPMessage
    body: bytes = b""

    def json(self) -> Any:
        """Read the body's value; raises ClientError where it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ClientError(
                "the answer is no JSON: is this a Tilewise service?", self.status, "unreadable"
            ) from error

    def error(self) -> ClientError:
        """Read the answer as an error, whoever wrote it (a proxy's page has no code)."""
        try:
            body = json.loads(self.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return ClientError(f"the service answered {self.status}", self.status, "error")
        message = body.get("error") or body.get("detail") or body.get("title") or f"the service answered {self.status}"
        return ClientError(str(message), self.status, str(body.get("code", "error")), body)


def target(path: str, query: Mapping[str, object | None]) -> str:
    """Give a path its query: None is left out, booleans are true and false."""
    pairs = {name: _word(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _word(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


class Transport:
    """Requests to one service from any number of threads, each on a connection of its own while it lasts."""

    def __init__(self, url: str, timeout: float, retries: int) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"a service's address is http://host:port, got {url!r}")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self.timeout, self._retries = timeout, retries
        self._idle: deque[HTTPConnection] = deque()
        self._owner = os.getpid()

    def exchange(self, ask: Ask, into: memoryview | None = None) -> Reply:
        """Send, and give the answer below 400; a 200's body goes into `into` where given.

        Raises ClientError. Sent again, a bounded number of times: after 429 and 503 with Retry-After, and after a
        broken connection where the request says that this does no harm.
        """
        for left in reversed(range(self._retries + 1)):
            try:
                reply = self._once(ask, into)
            except FAILURES as failure:
                if not left or not ask.again or isinstance(failure, ConnectionRefusedError | TimeoutError):
                    raise self.unreachable(failure) from failure
                continue
            if reply.status < 400:  # noqa: PLR2004 - HTTP's own boundary between answers and errors
                return reply
            self._pause_or_raise(reply, left if ask.patient else 0)
        raise AssertionError("the last round returns or raises")

    @contextmanager
    def stream(self, ask: Ask) -> Iterator[HTTPResponse]:
        """Give an answer to be read as it comes, on its own connection; raises ClientError, OSError, HTTPException."""
        connection = self._open(ask.timeout)
        try:
            response = self._send(connection, ask)
            if response.status >= 400:  # noqa: PLR2004 - HTTP's own boundary between answers and errors
                raise Reply(response.status, response.headers, response.read()).error()
            yield response
        finally:
            connection.close()

    def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().close()

    def unreachable(self, failure: Failure) -> UnreachableError:
        """Say what a failure of the connection means."""
        if isinstance(failure, ConnectionRefusedError):
            return UnreachableError(f"nothing listens at {self.url}")
        if isinstance(failure, TimeoutError):
            return UnreachableError(f"{self.url} did not answer in time")
        return UnreachableError(f"the connection to {self.url} failed: {failure or type(failure).__name__}")

    def _pause_or_raise(self, reply: Reply, left: int) -> None:
        error = reply.error()
        pause = reply.headers.get("Retry-After")
        if not left or reply.status not in BUSY or pause is None or error.code in HOPELESS:
            raise error
        time.sleep(min(float(pause), LONGEST_PAUSE) if pause.isdecimal() else 1.0)

    def _once(self, ask: Ask, into: memoryview | None) -> Reply:
        connection = self._take(ask.timeout)
        try:
            response = self._send(connection, ask)
            reply = _read(response, into)
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        return reply

    def _send(self, connection: HTTPConnection, ask: Ask) -> HTTPResponse:
        headers = dict(ask.headers)
        if ask.body or ask.method == "POST":
            headers["Content-Length"] = str(sum(part.nbytes for part in ask.body))
        try:
            body = iter(ask.body) if ask.body else None
            connection.request(ask.method, self._prefix + ask.target, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            # A body that is refused is not read to its end: the answer may stand in the socket already.
            if connection.sock is None:
                raise
        return connection.getresponse()

    def _open(self, timeout: float | None) -> HTTPConnection:
        return self._kind(self._host, self._port, timeout=timeout or self.timeout)

    def _take(self, timeout: float | None) -> HTTPConnection:
        if self._owner != os.getpid():
            # A forked child must not write into its parent's connections.
            self.close()
            self._owner = os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not _stale(connection):
                connection.sock.settimeout(timeout or self.timeout)
                return connection
            connection.close()
        return self._open(timeout)


def _stale(connection: HTTPConnection) -> bool:
    """Tell whether an idle connection was closed by the service: it then has something to read."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _read(response: HTTPResponse, into: memoryview | None) -> Reply:
    if into is None or response.status != 200:  # noqa: PLR2004 - only a 200 carries what the caller made room for
        return Reply(response.status, response.headers, response.read())
    if response.length is not None and response.length != into.nbytes:
        message = f"{into.nbytes} bytes were expected, the answer has {response.length}"
        raise ClientError(message, response.status, "unreadable")
    done = 0
    while done < into.nbytes:
        count = response.readinto(into[done:])
        if not count:
            raise IncompleteRead(b"", into.nbytes - done)
        done += count
    response.read()
    return Reply(response.status, response.headers)
