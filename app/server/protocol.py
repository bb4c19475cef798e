"""BulkProtocol: an asyncio protocol that receives bodies of declared length straight into their buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from uvicorn import Config
from uvicorn.server import ServerState

from app.server.bulk_transfer import BulkSocket
from app.server.flow_control import FlowControl, TransferLimits, WriteProgress, WriteWatchdog
from app.server.half_close import HalfClosedWatch
from app.server.http import HEAD, LINGER, AdmissionCheck, HttpParser, InvalidRequests, PendingAdmissions
from app.server.peer import Authenticator, Peer, peer_of
from app.server.request import ErrorResponse, RequestCycle, StreamingCycle
from app.server.thread_pool import ThreadPool

_EARLY_BYTES: Final = 2**18  # bytes read at once where nobody has given a place for them
_EARLY: Final = 2**16  # a body up to this long may come before its route asks for it
_PIECE: Final = 2**21  # bytes of an answer that a transport is handed at once
_SHARE: Final = 2**19  # bytes of a body that a connection reads before it is the others' turn


def _open(method: bytes, url: bytes, nbytes: int, ahead: PendingAdmissions) -> None:
    """An admission check that refuses nothing."""


def protocol_factory(
    limits: TransferLimits,
    error: ErrorResponse,
    admission: AdmissionCheck = _open,
    authenticate: Authenticator | None = None,
    count_invalid: Callable[[int], None] = lambda _: None,
    transfers: ThreadPool | None = None,
) -> Any:
    """What uvicorn's `http=` takes: it makes connections, which share the bytes that they read into.

    `count_invalid` is told the status of what has not become a request; `transfers` move what is large.
    """
    early_bytes, watchdog = memoryview(bytearray(_EARLY_BYTES)), WriteWatchdog(limits)
    made = partial(
        BulkProtocol, limits=limits, error=error, admission=admission, invalid=InvalidRequests(count_invalid)
    )
    made = partial(made, transfers=transfers if transfers is not None and transfers.size else None)
    return partial(made, authenticate=authenticate, early_bytes=early_bytes, watchdog=watchdog)


class BulkProtocol(asyncio.BufferedProtocol):
    """One connection. Requests are answered one after the other; those that are sent ahead wait as bytes.

    Requests find it in their scope's extensions, under EXTENSION: `source` is the body, `emptied` and `abort` are for
    answers.
    """

    transport: asyncio.Transport
    flow: FlowControl
    bulk: BulkSocket
    server_address: tuple[str, int | None] | None = None
    client_address: tuple[str, int] | None = None
    scheme = "http"
    peer = Peer()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: TransferLimits,
        error: ErrorResponse,
        admission: AdmissionCheck,
        authenticate: Authenticator | None,
        invalid: InvalidRequests,
        early_bytes: memoryview,
        watchdog: WriteWatchdog,
        transfers: ThreadPool | None,
    ) -> None:
        self._loop = _loop or asyncio.get_event_loop()
        self._server_state = server_state
        how = admission, error, authenticate, invalid
        self._http = HttpParser(self, config, server_state, app_state, self._loop, *how)
        self._limits, self._early_bytes, self._watchdog = limits, early_bytes, watchdog
        self.progress, self._transfers, self._unsent = WriteProgress(), transfers, 0
        self._held = b""
        self._head, self._dropping, self._read, self._lingers = 0, 0, 0, False
        self._timer: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._ended: HalfClosedWatch | None = None
        self.source: StreamingCycle | None = None

    # For the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; a client that says nothing is waited for no longer than one that stalls."""
        self.transport = cast("asyncio.Transport", transport)
        self.flow = FlowControl(self.transport)
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        threads = self._transfers if self.scheme == "http" else None  # TLS is the event loop's
        self.bulk = BulkSocket(threads, transport.get_extra_info("socket"))
        own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.server_address = (own, None) if isinstance(own, str) else own and own[:2]
        self.client_address = peer[:2] if isinstance(peer, tuple) else None  # a Unix socket's client has none
        self.peer = peer_of(transport)
        self._server_state.connections.add(cast("Any", self))
        self._watchdog.start(self._loop, cast("Any", self._server_state.connections))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake whoever waits for bytes to come, or to leave."""
        del exc
        self._unset_timer()
        if self._ended is not None:
            self._ended.stop()
            self._ended = None  # it refers to this
        self._lost.set()
        self.bulk.stop()
        self._server_state.connections.discard(cast("Any", self))
        self._http.disconnect()
        self.flow.resume_writing()
        if self.source is not None:
            self.source.wake()
        if not self._http.is_busy:
            self.source = None
            self._http.forget()

    def eof_received(self) -> bool:
        """Whether the transport stays: a client that has ended its side may wait for its answer still.

        Over TLS it cannot: asyncio closes such a transport.
        """
        has_requests = not self._lacks_body() if self._http.is_busy else bool(self._held)
        if self.scheme == "https" or self._lingers or not has_requests:
            return False
        self.flow.end_reading()
        self._ended = HalfClosedWatch(self, self._loop)
        return True

    def pause_writing(self) -> None:
        """Have answers wait."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Have answers go on."""
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """For uvicorn, which ends: close once the request under way is answered; one that was refused has heard why."""
        if not self._lingers:
            self._http.shutdown()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes land."""
        del sizehint
        if self.source is not None and self.source.place:
            return self.source.place[:_SHARE]
        return (
            self._early_bytes[:_EARLY] if self._http.streams else self._early_bytes
        )  # its chunks may be of a byte each

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were received."""
        if self.source is not None and self.source.place:
            self.bulk.reading.note(nbytes)
            self.source.note_received(nbytes)
            self._read += nbytes
            if not self.source.place:
                self.regulate()  # what follows waits in the system's memory until it has a place, too
            elif self._read >= _SHARE:
                self._yield_turn()
            return
        dropped = self._dropped(nbytes)
        if self._lingers:
            if not self._dropping:
                self._close()
        elif nbytes > dropped:
            self._take(bytes(self._early_bytes[dropped:nbytes]))

    def _dropped(self, nbytes: int) -> int:
        """How many of these bytes belong to a discarded body."""
        dropped = min(self._dropping, nbytes)
        self._dropping -= dropped
        if dropped and not (self._dropping or self._lingers):
            self._unset_timer()
        return dropped

    def takes_interim(self) -> bool:
        """Whether the request under way may be sent an interim response now."""
        cycle = self._http.cycle
        return cycle is not None and cycle.takes_interim

    def _lacks_body(self) -> bool:
        """Whether a part of the body of the request under way has not come."""
        return self._http.streams or (self.source is not None and self.source.left > len(self._held))

    def _yield_turn(self) -> None:
        """Let the others read: uvloop would go on as long as there is more, and so would asyncio at its next look."""
        self._read = 0
        self.flow.pause_reading()
        self._loop.call_soon(self.regulate)

    # For answers.

    @property
    def pending(self) -> int:
        """Bytes of answers that the connection still holds, or a thread for it."""
        return 0 if self._lost.is_set() else self._buffered + self._unsent - self.bulk.sent

    @property
    def _buffered(self) -> int:
        return 0 if self._lost.is_set() else self.transport.get_write_buffer_size()

    async def emptied(self) -> None:
        """Wait until the connection holds no byte of an answer, or is closed."""
        if not self._buffered:
            return
        self.transport.set_write_buffer_limits(int(self.scheme == "https"), 0)  # at 0 TLS never says "go on"
        try:
            await self.flow.drain()
        finally:
            if not self._lost.is_set():
                self.transport.set_write_buffer_limits()

    async def transmit(self, data: memoryview) -> None:
        """Send many bytes of an answer, copied by the system alone: by a thread if the client reads fast enough."""
        self.progress.written += len(data)
        self._unsent, rate = len(data), self.bulk.writing
        try:
            await self.emptied()
            while self._unsent and not self._lost.is_set():
                if self.bulk.takes(self._unsent, rate):
                    self._unsent -= await self.bulk.send(data[-self._unsent :])
                elif piece := data[-self._unsent :][:_PIECE]:
                    self._unsent -= len(piece)
                    self.transport.write(piece)
                    await self.emptied()
                    rate.note(len(piece))
        finally:
            self._unsent = 0

    async def abort(self) -> None:
        """Close at once, dropping what the connection holds, and wait until it is closed."""
        self.transport.abort()
        await self._lost.wait()

    # For requests.

    async def receive(self, view: memoryview) -> int:
        """Bytes that a thread has received into `view`; what the transport has then is for whoever waits."""
        self.flow.lend_reading()
        try:
            return await self.bulk.receive(view)
        finally:
            self.flow.return_reading()
            self.regulate()

    @property
    def held(self) -> int:
        """How many bytes came before they were asked for."""
        return len(self._held)

    def early(self, most: int) -> bytes:
        """Bytes that came before they were asked for."""
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    def regulate(self) -> None:
        """Read what somebody wants, and a little more so as to see that the client is there.

        A chunked body's request holds what has come, and pauses reading itself if that is too much.
        """
        if self._lost.is_set() or self._http.streams:
            return
        source, flow = self.source, self.flow
        waiting = source is not None and source.waits
        is_long = source is not None and source.left > _EARLY
        if waiting or not (self._held or is_long):
            flow.resume_reading()
        else:
            flow.pause_reading()

    def write(self, data: bytes) -> None:
        """Send bytes of an answer, for which the client has the time that the limits give it."""
        self.transport.write(data)
        self.progress.written += len(data)

    def answered(self, cycle: RequestCycle) -> None:
        """Go on with the next request; what is left of this one's body is read and dropped."""
        self.source = None
        if isinstance(cycle, StreamingCycle):
            self._dropping = cycle.left - len(self.early(cycle.left))
        if self._http.streams or self._dropping:
            self._expect_head()  # what is left of the body has the time that a head has
        if isinstance(cycle, StreamingCycle) and cycle.lingers:
            self._linger()
        if (self._held or self._ended) and not self._lingers:
            self._loop.call_soon(self._take, b"")

    def turned_away(self, length: int, stays: bool) -> None:
        """Drop these bytes; then go on with the next request if the connection stays, or close."""
        self._head, self._dropping = 0, length
        self._unset_timer()
        if not stays:
            self._linger()
        elif length:
            self._expect_head()

    def _linger(self) -> None:
        """Close once the client has sent what it was about to send, or has had the time."""
        self._lingers = True
        self._unset_timer()  # one that is lost is not kept alive by a timer: thousands would be, in a storm
        self._timer = self._loop.call_later(LINGER if self._dropping else 0, self._close)

    def _take(self, data: bytes) -> None:
        """Bytes without a place: a head, the early part of a body, or requests that are sent ahead."""
        data, self._held = self._held + data, b""
        http = self._http
        while data and not self._lingers and not self.transport.is_closing():
            if http.streams:
                data = self._stream(data)
            elif http.is_busy:
                self._held, data = data, b""
                if self.source is not None:
                    self.source.wake()
            else:
                data = self._feed(data)
                data = data[self._dropped(len(data)) :]
        if self._ended is not None and (not self._http.is_busy or self._lacks_body()):
            self._close()  # what it still lacks does not come
        self.regulate()

    def _stream(self, data: bytes) -> bytes:
        """Give bytes of a chunked body to the parser; gives what follows it."""
        rest = data[self._http.stream(data) :]
        if self._timer is not None and not self._http.streams:
            self._unset_timer()
            self._expect_head()  # the time before was for the rest of a body that was answered early
        return rest

    def _feed(self, data: bytes) -> bytes:
        """Give a head, or a part of one, to the parser; gives what follows it."""
        end = self._http.until_end(data)
        self._head += end
        if self._head > HEAD:
            self._http.refuse(431, f"the request's head has more than {HEAD} bytes")
            return b""
        self._http.feed(data[:end])
        if self._http.begun:
            self._begin()
        elif self._head:
            self._expect_head()
        return data[end:]

    def _begin(self) -> None:
        """A request has begun: a body of declared length bypasses the parser."""
        self._head, self._http.begun = 0, False
        self._unset_timer()
        cycle = self._http.cycle
        self.source = cycle if isinstance(cycle, StreamingCycle) else None

    def _expect_head(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.idle_timeout, self._late)

    def _late(self) -> None:
        if self._head:
            self._http.refuse(408, f"the request's head did not arrive within {self._limits.idle_timeout:g} s")
        self._close()

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
