"""tilewise serve: the service in this process, until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from app.errors import StartRefused, TilewiseError
from app.main import Server, create_app
from app.settings import Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def serve(settings: Settings, *, until_eof: bool) -> None:
    """Serve on the settings' host and port until SIGTERM or Ctrl-C; raises TilewiseError where it cannot start."""
    _log(settings)
    listener = _listener(settings.host, settings.port)
    address = _address(listener)
    if not _is_loopback(settings.host):
        print(
            f"Warning: {settings.host} can be reached from other machines, and there is no authentication yet: "
            "whoever reaches this port can use the device.",
            file=sys.stderr,
        )
    closing = threading.Event()
    plain = _Plain(create_app(settings, f"pid {os.getpid()} at {address}", closing))
    server = _Announcing(_config(plain, settings), closing, address)
    if until_eof:
        threading.Thread(target=_until_eof, name="until eof", daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return
    except SystemExit:
        raise plain.refusal or StartRefused("the service did not start: its log says why") from None
    finally:
        listener.close()


def _config(application: Application, settings: Settings) -> uvicorn.Config:
    # Its own lines about starting say less than ours; a line a request would cost more than a small request.
    talkative = settings.log_level == "debug"
    return uvicorn.Config(
        application,
        log_config=None,
        log_level="debug" if talkative else "warning",
        access_log=talkative,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
    )


def _log(settings: Settings) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("app").setLevel(settings.log_level.upper())


def _listener(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: until the service has started, callers are turned away, not kept."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartRefused(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
    """Says where it listens, once it does."""

    def __init__(self, config: uvicorn.Config, closing: threading.Event, address: str) -> None:
        super().__init__(config, closing)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"Tilewise listens on {self._address}", flush=True)


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
