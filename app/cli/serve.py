"""Runs the service in this process."""

from __future__ import annotations

import contextlib
import errno
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final, Literal

import uvicorn

from app.api.errors import problem
from app.api.state import State, state_of
from app.cli import startup_messages
from app.devices.process import allocator
from app.errors import StartRefused, TilewiseError
from app.main import Drain, Fleets, Server, create_app, transfer_limits
from app.observability import logs
from app.server import (
    AdmissionCheck,
    ConnectionLimits,
    ReloadingTls,
    SystemdNotifier,
    TlsFiles,
    protocol_factory,
)
from app.server.security_headers import of_every_answer
from app.services.service import Service
from app.settings import Settings

# Seconds, at most, for which a thread with the next product of a device waits while the event loop has the GIL.
_SERVING: Final = (700, 10, 10)  # Python's own: passes that a request waits for are short ones
_HANDOVER: Final = 0.0005
Loop = Literal["auto", "asyncio", "uvloop"]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def serve(settings: Settings, *, until_eof: bool, fleet: Fleets | None = None, loop: Loop = "auto") -> None:
    """Serve where the settings say until SIGTERM or Ctrl-C; raises TilewiseError if it cannot start.

    `fleet` opens other devices than this host's, for tests and benchmarks; `loop` auto is uvloop where there is one.
    """
    sys.setswitchinterval(_HANDOVER)
    allocator.keep_little()
    os.umask(0o077)  # data, results and the database are nobody else's
    logs.configure(settings.log_format, settings.log_level)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a form's sender is told what is wrong with it
    notifier = SystemdNotifier.from_environment()  # before there are children, which would inherit it
    listener, address = _opened(settings)
    _expect_authentication(settings)
    closing = threading.Event()
    allocator.keep_giving_back(closing)
    application = create_app(settings, f"pid {os.getpid()} at {address}", closing, fleet=fleet)
    plain = _Plain(application)
    with contextlib.ExitStack() as stack:
        if listener is not None:
            stack.enter_context(listener)
        uds = stack.enter_context(_unix_listener(settings.uds))
        state = state_of(application)
        # Strangers are not told how busy the service is: their connections get as far as their heads.
        admission = state.load_shedder.refused if settings.auth == "none" else None
        limits = ConnectionLimits.of(settings.connections, settings.connections_per_address, problem)
        drain = Drain(settings.drain_seconds, state.tasks)
        config = _config(plain, state, settings, loop)
        tls = _tls(settings, state.metrics.failed_handshake)
        server = _Announcing(config, closing, address, uds, admission, state.slot.get, notifier, limits, drain, tls)
        state.metrics.count_connections(lambda: len(server.server_state.connections))
        if until_eof:
            threading.Thread(target=_until_eof, name="until eof", daemon=True).start()
        try:
            _run(server, listener, settings)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return
        if not server.started:
            raise plain.refusal or StartRefused("the service did not start: its log says why")


def _run(server: _Announcing, listener: socket.socket | None, settings: Settings) -> None:
    """Serve until the service ends; raises StartRefused if another socket listens on the port by now."""
    try:
        server.run(sockets=[] if listener is None else [listener])
    except SystemExit:
        server.started = False  # versions of uvicorn differ in whether they say so by this exception
    except OSError as error:
        if error.errno != errno.EADDRINUSE or settings.port == "off":
            raise
        raise _cannot_listen(settings.host, settings.port, error) from error


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn's tells more than the sentence that a refused start ends with."""
    return "startup failed" not in record.getMessage()


def _config(application: Application, state: State, settings: Settings, loop: Loop) -> uvicorn.Config:
    # Its own lines about starting say less than ours; a line a request would cost more than a small request.
    talkative = settings.log_level == "debug"
    how = transfer_limits(settings), problem, state.load_shedder.refused, state.guard
    config = uvicorn.Config(
        application,
        http=protocol_factory(*how, state.metrics.invalid_request, state.threads.transfers),
        loop=loop,
        log_config=None,
        log_level="debug" if talkative else "warning",
        access_log=talkative,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        headers=of_every_answer(tls=settings.tls_certificate is not None),
    )
    config.load()
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return config


def _tls(settings: Settings, failed: Callable[[], None]) -> ReloadingTls | None:
    """TLS for the port, or None; `failed` is told of handshakes that do. Raises StartRefused."""
    if settings.tls_certificate is None:
        return None
    clients = settings.tls_clients if settings.auth == "mtls" else None
    try:
        return ReloadingTls(TlsFiles(settings.tls_certificate, settings.tls_key, clients), failed)
    except OSError as error:  # ssl.SSLError too
        message = f"TLS cannot be had from {settings.tls_certificate}: {error.strerror or error}"
        raise StartRefused(message) from error


def _expect_authentication(settings: Settings) -> None:
    """Refuse to be open to other machines, or to check certificates of nobody; raises StartRefused."""
    if settings.auth == "mtls" and None in {settings.tls_certificate, settings.tls_clients}:
        raise StartRefused("TILEWISE_AUTH=mtls needs TILEWISE_TLS_CERTIFICATE and TILEWISE_TLS_CLIENTS")
    open_to_others = settings.port != "off" and not _is_loopback(settings.host)
    if settings.auth == "none" and settings.insecure == "no" and open_to_others:
        raise StartRefused(
            f"{settings.host} can be reached from other machines: set TILEWISE_AUTH=keys, and make a key with "
            "`tilewise keys create NAME`; or TILEWISE_INSECURE=yes, and whoever reaches the port uses the device"
        )


def _opened(settings: Settings) -> tuple[socket.socket | None, str]:
    """The socket of a port, unless there is none, and the service's address; raises StartRefused."""
    if settings.port != "off":
        listener = tcp_listener(settings.host, settings.port)
        return listener, _address(listener, "https" if settings.tls_certificate else "http")
    if settings.uds is None:
        raise StartRefused("without a port there is nowhere to listen: set TILEWISE_UDS, or give --uds")
    return None, _unix_address(settings.uds)


def _unix_address(path: Path) -> str:
    return f"unix://{path.absolute()}"


def tcp_listener(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: until the service has started, callers are turned away, not kept."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Sockets with this option share a port until one of them listens: one that the system chooses would not be ours.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, port != 0)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> StartRefused:
    return StartRefused(f"cannot listen on {host} port {port}: {error.strerror or error}")


def _address(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def _unix_listener(path: Path | None) -> Iterator[socket.socket | None]:
    """A socket at a path that only this user can reach; raises StartRefused. The server takes the path away.

    A socket that nobody listens on any more is replaced: kill -9 leaves one.
    """
    if path is None:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            if path.is_socket() and not _is_listened_on(path):
                path.unlink()
            listener.bind(str(path))
            path.chmod(0o600)  # nobody is served before the socket listens, which is later
        except OSError as error:
            raise StartRefused(f"cannot listen on {path}: {error.strerror or error}") from error
        yield listener


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _until_eof() -> None:
    """End with the parent: it holds the other end of standard input, and cannot die without closing it."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class _Announcing(Server):
    """Says where it listens, once it does, with which devices and data, and when it is ready."""

    def __init__(
        self,
        config: uvicorn.Config,
        closing: threading.Event,
        address: str,
        uds: socket.socket | None,
        admission: AdmissionCheck | None,
        service: Callable[[], Service] | None = None,
        notifier: SystemdNotifier | None = None,
        limits: ConnectionLimits | None = None,
        drain: Drain | None = None,
        tls: ReloadingTls | None = None,
    ) -> None:
        super().__init__(config, closing, uds, admission, limits, drain, tls)
        self._service, self._notifier = service, notifier or SystemdNotifier(None)
        unix = [] if uds is None else [_unix_address(Path(uds.getsockname()))]
        self._addresses = list(dict.fromkeys([address, *unix]))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError:  # a socket cannot listen
            await self.lifespan.shutdown()
            raise
        for listener in sockets or ():  # connections that outlive this service keep no other from its port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        gc.collect()
        gc.set_threshold(*_SERVING)
        gc.freeze()  # what lives as long as the process is not looked through again while a request waits
        print(f"Tilewise listens on {' and '.join(self._addresses)}", flush=True)
        if self._service is not None:
            print("\n".join(startup_messages.opening_lines(self._service(), self._addresses[0])), flush=True)
            startup_messages.announce_ready(self._addresses[0], self._closing)
        self._notifier.ready(self._state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.stopping()
        await super().shutdown(sockets)

    def _state(self) -> str:
        """What systemctl status shows."""
        reason = self._service().ready() if self._service is not None else None
        return "products are served" if reason is None else f"no products yet: {reason}"


class _Plain:
    """An application whose refusal to start is kept and told in one sentence, where the framework logs a traceback."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.refusal: TilewiseError | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        held: list[Message] = []

        async def keep_back_failure(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                held.append(message)
            else:
                await send(message)

        try:
            await self._application(scope, receive, keep_back_failure)
        except TilewiseError as error:
            self.refusal = error
            await send({"type": "lifespan.startup.failed", "message": ""})
        except BaseException:
            for message in held:
                await send(message)
            raise
