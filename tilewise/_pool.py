"""Requests to one service: pooled connections, bodies sent and received without a copy, bounded retries."""

from __future__ import annotations

import os
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from tilewise._connection import Address, Body, Connection, connect
from tilewise._http1 import HttpRequest, HttpResponse, ResponseHead
from tilewise._sansio import Flow, Pause
from tilewise.errors import ClientError, TimedOut, UnreachableError, UnreadableAnswer

BUSY: Final = (429, 503)
# A request that is still being answered under its own Idempotency-Key is answered 409.
IN_FLIGHT: Final = 409
KEY: Final = "Idempotency-Key"
LONGEST_PAUSE: Final = 10.0
# A host without a device has none a few seconds later either.
HOPELESS: Final = ("no_device",)
_PIECE: Final = 2**16

T = TypeVar("T")
ResponseReader = Callable[[ResponseHead, Body], Flow[T]]


class OpenResponse:
    """An answer that is read as it comes; close it."""

    def __init__(self, status: int, connection: Connection, body: Body) -> None:
        self.status = status
        self._connection, self._body = connection, body
        self._room = memoryview(bytearray(_PIECE))

    def some(self, patience: float) -> Flow[bytes]:
        """Give what comes next, nothing at the end; raises OSError, TimeoutError after so many seconds of silence."""
        self._connection.patience = patience
        count = yield from self._body.some(self._room)
        return bytes(self._room[:count])

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Transport:
    """Requests from any number of threads or tasks, each on a connection of its own while it lasts.

    Every method but `close` and `unreachable` is a flow.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        retries: int,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url, self.place, self._host, self._prefix = _parsed(url, tls)
        self.timeout, self._retries, self._headers = timeout, retries, dict(headers or {})
        self._idle: deque[Connection] = deque()
        self._owner = os.getpid()

    def exchange(self, ask: HttpRequest) -> Flow[HttpResponse]:
        """Send, and give the answer below 300 with its whole body; as `read_answer` else."""
        return (yield from self.read_answer(ask, _whole))

    def read_answer(self, ask: HttpRequest, reader: ResponseReader[T]) -> Flow[T]:
        """Send, and have `reader` read the body of the answer, if it is one below 300.

        Raises ClientError. Sent again, a bounded number of times: after 429 and 503 with Retry-After, and after a
        broken connection where the request says that this does no harm.
        """
        done = None
        for turn in range(self._retries + 1):
            left = self._retries - turn
            try:
                reply, read = yield from self._once(ask, reader, done)
            except OSError as failure:
                if not left or not ask.again or isinstance(failure, _FINAL):
                    raise self.unreachable(failure) from failure
                yield Pause(min(1.0, 0.05 * 2**turn) if turn else 0.0)
                done = ask.done
                continue
            if read is not None:
                return read[0]
            yield Pause(self._pause(reply, ask, turn))
        raise AssertionError("the last round returns or raises")

    def open(self, ask: HttpRequest) -> Flow[OpenResponse]:
        """Send, and give the answer to be read as it comes, on its own connection; raises ClientError, OSError."""
        connection = yield from connect(self.place, ask.timeout or self.timeout)
        try:
            head, body = yield from self._asked(connection, ask)
            opened = OpenResponse(head.status, connection, body)
            rest = (yield from body.excerpt()) if head.status >= 300 else b""  # noqa: PLR2004 - HTTP's own boundary
        except BaseException:
            connection.close()
            raise
        if head.status >= 300:  # noqa: PLR2004
            connection.close()
            raise HttpResponse(head.status, head.headers, rest).error()
        return opened

    def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().close()

    def unreachable(self, failure: OSError) -> UnreachableError:
        """Say what a failure of the connection means."""
        if isinstance(failure, ConnectionRefusedError | FileNotFoundError):
            return UnreachableError(f"nothing listens at {self.url}")
        if isinstance(failure, TimeoutError):
            return TimedOut(f"{self.url} did not answer in time")
        reason = failure.strerror or failure
        return UnreachableError(f"the connection to {self.url} failed: {reason or type(failure).__name__}")

    def _pause(self, reply: HttpResponse, ask: HttpRequest, turn: int) -> float:
        """Seconds until a refused request is sent again; raises the refusal if it is not."""
        error = reply.error()
        busy = reply.status in BUSY or (reply.status == IN_FLIGHT and turn > 0 and KEY in ask.headers)
        told = error.retry_after
        if told is None and reply.status == IN_FLIGHT:
            told = 1.0
        if turn == self._retries or not ask.patient or not busy or told is None or error.code in HOPELESS:
            raise error
        if told > LONGEST_PAUSE:
            raise error
        return told * random.uniform(1.0, 1.1)  # noqa: S311 - so that those turned away do not return as one

    def _once(
        self, ask: HttpRequest, reader: ResponseReader[T], done: int | None
    ) -> Flow[tuple[HttpResponse, tuple[T] | None]]:
        """One try: the answer, and what was made of it where it is no refusal, or has the status `done`."""
        connection = yield from self._taken(ask.timeout or self.timeout)
        try:
            head, body = yield from self._asked(connection, ask)
            read: tuple[T] | None = None
            if head.status < 300 or head.status == done:  # noqa: PLR2004 - HTTP's own boundary
                read = ((yield from reader(head, body)),)
            rest = yield from body.excerpt()
        except BaseException:
            connection.close()
            raise
        if body.reusable and body.ended:
            self._idle.append(connection)
        else:
            connection.close()
        return HttpResponse(head.status, head.headers, rest), read

    def _asked(self, connection: Connection, ask: HttpRequest) -> Flow[tuple[ResponseHead, Body]]:
        first = memoryview(ask.head(self._host, self._prefix, self._headers))
        whole = yield from connection.send([first, *ask.body])
        head = yield from connection.head()
        body = Body(connection, head)
        body.reusable = body.reusable and whole
        return head, body

    def _taken(self, patience: float) -> Flow[Connection]:
        if self._owner != os.getpid():
            # A forked child must not write into its parent's connections.
            self.close()
            self._owner = os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not connection.spent:
                connection.patience = patience
                return connection
            connection.close()
        return (yield from connect(self.place, patience))


# Trying again at once would meet the same: nobody there, or somebody who has had the whole time-out.
_FINAL: Final = (ConnectionRefusedError, FileNotFoundError, TimeoutError, ssl.SSLCertVerificationError)


def _whole(head: ResponseHead, body: Body) -> Flow[HttpResponse]:
    return HttpResponse(head.status, head.headers, (yield from body.whole()))


def into(view: memoryview) -> ResponseReader[ResponseHead]:
    """A reader that fills `view`; raises UnreadableAnswer if the body has another length."""

    def reader(head: ResponseHead, body: Body) -> Flow[ResponseHead]:
        if head.status != 200 or body.length not in {None, view.nbytes}:  # noqa: PLR2004 - another has no such body
            found = "none of that kind" if head.status != 200 else str(body.length)  # noqa: PLR2004
            raise _unexpected(view.nbytes, found, head.status)
        done = yield from body.fill(view)
        more = yield from body.some(memoryview(bytearray(1)))
        if done != view.nbytes or more:
            raise _unexpected(view.nbytes, "more" if more else str(done), head.status)
        return head

    return reader


def _unexpected(expected: int, found: str, status: int) -> ClientError:
    return UnreadableAnswer(f"{expected} bytes were expected, the answer has {found}", status, "unreadable")


def _parsed(url: str, tls: ssl.SSLContext | None) -> tuple[str, Address, str, str]:
    """A service's address: as told, where it listens, the Host header, and what stands before every path."""
    parts = urlsplit(url if "://" in url or url.startswith("unix:") else f"http://{url}")
    if parts.scheme == "unix" and not parts.netloc and parts.path:
        return url, Address("localhost", 0, unquote(parts.path)), "localhost", ""
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"a service's address is http://host:port or unix:///path, got {url!r}")
    prefix, secure = parts.path.rstrip("/"), parts.scheme == "https"
    host = parts.netloc.rpartition("@")[2]
    if not secure and tls is not None:
        raise ValueError(f"{url!r} is no https:// address: nothing there speaks TLS")
    context = (tls or ssl.create_default_context()) if secure else None
    place = Address(parts.hostname, parts.port or (443 if secure else 80), None, context)
    return f"{parts.scheme}://{host}{prefix}", place, host, prefix
