"""Accepts connections, and answers those whose first request is refused before a transport is made for them."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import re
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, cast

from starlette.responses import Response
from uvicorn.server import ServerState

from app.observability import request_context
from app.observability.request_context import context_of
from app.server.connection_limits import ConnectionLimits
from app.server.http import HEAD, LINGER, AdmissionCheck, PendingAdmissions
from app.server.protocol import BulkProtocol
from app.server.request import lines_of, rendered
from app.server.tls import ReloadingTls

_LOG = logging.getLogger(__name__)
_MANY: Final = 64  # connections that are looked at in a row
_PAUSE: Final = 0.005  # seconds between two looks while some were refused: waking up costs more than a refusal
_SHORT: Final = 1.0  # seconds in which the system may have descriptors or memory again
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
_ID: Final = re.compile(rb"\r\nx-request-id:[ \t]*([^\r\n\t ]{1,128})[ \t]*(?=\r\n)", re.IGNORECASE)
_EXPECTS: Final = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)
_WORDS: Final = 3  # of a request's first line
HANDSHAKE: Final = 5.0  # seconds that a TLS handshake may take
_UNDER_WAY: Final = 0.2  # seconds that a handshake of TCP may still take: an exchange with the client
_LINGERING: Final = 64  # refused connections that are still open
_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER of Linux's socket(7)
_FLAGS, _SYN = 13, 2  # of a TCP header (RFC 9293, section 3.1): the byte that has it, and the bit
# A program of classic BPF, of (code, jt, jf, k): a segment that begins a connection is dropped, every other one passes.
_NO_SYN: Final = (
    (0x30, 0, 0, _FLAGS),  # BPF_LD | BPF_B | BPF_ABS
    (0x45, 0, 1, _SYN),  # BPF_JMP | BPF_JSET | BPF_K
    (0x06, 0, 0, 0),  # BPF_RET | BPF_K
    (0x06, 0, 0, 0xFFFFFFFF),
)


class Acceptor:
    """Takes connections from a listening socket, as the server that a loop makes does, whose methods uvicorn calls.

    `_refusal` is the one place where a connection is refused at accept. A client that waits with its body (Expect:
    100-continue, RFC 9110, 10.1.1) costs a read and a write there, where a transport, a parser and a request would come
    to nothing. That earns its place: at ten times the products that can be made, half of the refusals came within 6 to
    13 ms, and without it within 1.7 to 4.7 s, which clients and service on two processors spent on connections alone.
    What TLS hides is refused once it is parsed; where there are too many connections, some hear so over TLS.
    `closing` is the answer to those whom the system let in and whom the end of the service overtakes.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        admission: AdmissionCheck | None,
        state: ServerState,
        tls: ReloadingTls | None = None,
        limits: ConnectionLimits | None = None,
        closing: Response | None = None,
    ) -> None:
        self._listener, self._make, self._admission, self._state, self._tls = listener, make, admission, state, tls
        self._limits, self._closing, self._closed = limits, closing, False
        self._loop = asyncio.get_running_loop()
        self._refused: deque[tuple[socket.socket, float]] = deque()  # with when they are closed at the latest
        self._tasks: dict[asyncio.Task[None], str] = {}  # with the client's address
        self._refusing = set[asyncio.Task[None]]()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, backlog: int) -> None:
        """Listen."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._look)

    async def end_handshakes(self) -> None:
        """Have no further connection begin, and accept those of which the client may know already.

        One that the system has let in, and nobody accepts before the listening socket is closed, is reset.
        """
        _drop_newcomers(self._listener)
        await asyncio.sleep(_UNDER_WAY)

    def close(self) -> None:
        """Take no more connections, and refuse those that wait; the listening socket is its owner's to close."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        _drop_newcomers(self._listener)
        with suppress(OSError):  # nobody waits any more
            while self._closing is not None:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._refuse(connection, self._closing)

    async def wait_closed(self) -> None:
        """Wait until those that were refused have heard why, or have had the time."""
        while self._refused or self._refusing:
            self._let_go()
            await asyncio.sleep(_PAUSE)

    def _look(self) -> None:
        """Take what has come; where some are refused, those who come next wait a little, and are looked at together."""
        self._let_go()
        pause = 0.0
        try:
            self._take()
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:
            _LOG.error("no connection can be taken: %s", error)
            pause = _SHORT
        self._wait(pause or (_PAUSE if self._refused else 0.0))

    def _take(self) -> None:
        """Take connections; raises OSError if none is there."""
        ahead, counts = PendingAdmissions(), self._counts()
        for _ in range(_MANY):
            connection, peer = self._listener.accept()
            connection.setblocking(False)
            address = peer[0] if isinstance(peer, tuple) else ""
            answer = self._refusal(connection, address, counts, ahead)
            if answer is None:
                counts[address] += 1
                self._hand_over(connection, address)
            else:
                self._refuse(connection, answer)

    def _counts(self) -> Counter[str]:
        """How many connections each address has; of none while there are fewer than one may have."""
        known = len(self._state.connections) + len(self._tasks)
        if self._limits is None or known + _MANY < self._limits.per_address:
            return Counter({"": known})
        peers = (getattr(each, "client_address", None) for each in self._state.connections)
        return Counter([*(peer[0] if peer else "" for peer in peers), *self._tasks.values()])

    def _refusal(
        self, connection: socket.socket, address: str, counts: Counter[str], ahead: PendingAdmissions
    ) -> Response | None:
        """The answer that a connection is refused with, behind those that were let in just now; None lets it in."""
        if self._limits is not None and (refused := self._limits.refusal(address, counts)) is not None:
            return refused
        if self._admission is None or self._tls is not None:
            return None
        asked = peeked(connection)
        return self._admission(*asked, ahead) if asked else None

    def _wait(self, seconds: float) -> None:
        """Look again after so many seconds, or when somebody comes."""
        if self._timer is not None:
            self._timer = None
            self._loop.add_reader(self._listener, self._look)
        if seconds:
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(seconds, self._look)

    def _refuse(self, connection: socket.socket, answer: Response) -> None:
        if self._tls is not None:
            self._refuse_over_tls(connection, answer)
            return
        head = b""
        with suppress(OSError):  # nothing has come yet
            head = connection.recv(HEAD)  # a connection that is closed with bytes unread is reset
        context = context_of((request_context.HEADER, value) for value in _ID.findall(head))
        lines = lines_of([*self._state.default_headers, (request_context.HEADER, context.request_id.encode())])
        with suppress(OSError):  # the client is gone again
            connection.send(rendered(answer, lines, closes=True))
        self._refused.append((connection, monotonic() + LINGER))
        if len(self._refused) > _LINGERING:  # their descriptors are needed by those who are served
            self._refused.popleft()[0].close()

    def _refuse_over_tls(self, connection: socket.socket, answer: Response) -> None:
        """Tell a client why it is refused, which takes a handshake: those beyond a few are closed without a word."""
        if len(self._refusing) >= _LINGERING:
            connection.close()
            return
        lines = lines_of([*self._state.default_headers, (request_context.HEADER, request_context.made_id().encode())])
        words = rendered(answer, lines, closes=True)
        task = self._loop.create_task(self._tell(connection, RefusingProtocol(words)))
        self._refusing.add(task)
        task.add_done_callback(self._refusing.discard)

    async def _tell(self, connection: socket.socket, protocol: RefusingProtocol) -> None:
        """Refuse a connection, and wait until its client has closed it, or has had the time."""
        await self._connect(connection, lambda: protocol)
        with suppress(TimeoutError):
            await asyncio.wait_for(protocol.gone.wait(), LINGER)
        protocol.abort()

    def _let_go(self) -> None:
        """Close those that have heard why, and have closed or have had the time."""
        now = monotonic()
        for _ in range(len(self._refused)):
            connection, latest = self._refused.popleft()
            if now < latest and _is_open(connection):
                self._refused.append((connection, latest))
            else:
                connection.close()

    def _hand_over(self, connection: socket.socket, address: str) -> None:
        task = self._loop.create_task(self._connect(connection, self._make, address))
        self._tasks[task] = address
        task.add_done_callback(self._tasks.pop)

    async def _connect(
        self, connection: socket.socket, make: Callable[[], asyncio.BaseProtocol], address: str = ""
    ) -> None:
        if self._tls is None:
            with suppress(OSError):  # the client is gone again
                _, protocol = await self._loop.connect_accepted_socket(make, connection)
                if self._closed and isinstance(protocol, BulkProtocol):  # too late to be told with the others
                    protocol.shutdown()
            return
        try:
            await self._loop.connect_accepted_socket(
                make, connection, ssl=self._tls.context(), ssl_handshake_timeout=HANDSHAKE
            )
        except OSError as error:
            if address:
                self._tls.note_failure(address, error)


class RefusingProtocol(asyncio.Protocol):
    """A connection that is told why it is refused; `gone` is set once its client has closed it."""

    def __init__(self, words: bytes) -> None:
        self.gone = asyncio.Event()
        self._words, self._transport = words, cast("asyncio.Transport | None", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._words)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake who waits for it."""
        del exc
        self.gone.set()

    def abort(self) -> None:
        """Close it, if it is open."""
        if self._transport is not None:
            self._transport.abort()


def peeked(connection: socket.socket) -> tuple[bytes, bytes, int] | None:
    """Method, URL and length of a request whose client waits with its body; None of any other, and of part of one.

    It decides who is refused and nothing else: what comes in is parsed where requests are.
    """
    try:
        head = connection.recv(HEAD, socket.MSG_PEEK)
    except OSError:  # nothing is here yet, or the client is gone again
        return None
    words, lengths = head.partition(b"\r\n")[0].split(b" "), _LENGTH.findall(head)
    if len(words) != _WORDS or len(lengths) != 1 or not head.endswith(b"\r\n\r\n") or not _EXPECTS.search(head):
        return None
    return words[0], words[1], int(lengths[0])


def _drop_newcomers(listener: socket.socket) -> None:
    """Have the system begin no further connection: who comes now asks again after a second, and is turned away.

    A handshake that is under way ends. A Unix socket, and another system, lets them in.
    """
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _NO_SYN))
    with suppress(OSError):
        given = struct.pack("@HP", len(_NO_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, given)


def _is_open(connection: socket.socket) -> bool:
    """Whether a client may still send; what it has sent is dropped."""
    try:
        return bool(connection.recv(HEAD))
    except BlockingIOError:
        return True
    except OSError:
        return False
