"""A whole service in this process behind a real socket, and what the tests of overlapping run in its serving child."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from app.api.errors import problem
from app.api.state import state_of
from app.devices.backend import Buffer, WorkerContext
from app.devices.process import DeviceWorker, WorkerLink
from app.errors import LaunchFailed
from app.main import Fleets, Server, create_app, transfer_limits
from app.server import protocol_factory
from app.services.service import Service
from app.settings import Settings
from app.worker.serving.chunked_transfer import transfers_of
from tests.support.api.wire_server import Answers, head
from tests.support.waiting import until

LARGE_ALLOCATION = 2**22
RAW = "application/octet-stream"


def keys(held: WorkerContext, link: WorkerLink) -> tuple[int, ...]:
    """What is on its way to the device or from it."""
    del link
    return transfers_of(held).keys


@dataclass
class Refusals:
    """How many large allocations are still to be refused."""

    left: int = 0


def left_to_refuse(held: WorkerContext, link: WorkerLink) -> int:
    """How many large allocations the device still refuses."""
    del link
    return held.state(Refusals).left


def starve(held: WorkerContext, link: WorkerLink, times: int) -> int:
    """Have the device refuse as many large allocations from now on; gives how many are left of the last order."""
    del link
    backend: Any = held.backend
    refusals = held.state(Refusals)
    left, refusals.left = refusals.left, times

    def tight(nbytes: int) -> Buffer:
        if nbytes >= LARGE_ALLOCATION and refusals.left:
            refusals.left -= 1
            raise LaunchFailed(f"out of memory: {nbytes} bytes are asked for", fatal=False)
        return type(backend).allocate(backend, nbytes)  # type: ignore[no-any-return]

    backend.allocate = tight
    return left


@dataclass
class Running:
    """A service that is ready."""

    port: int
    service: Service

    @property
    def products(self) -> DeviceWorker:
        return self.service.fleet.units[0].products

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def keys(self, unit: int = 0) -> tuple[int, ...]:
        found: tuple[int, ...] = self.service.fleet.units[unit].products.call(keys)
        return found

    def settled(self) -> None:
        """Wait until nothing is held for any product, here or on a device; fail where that does not come."""
        slab, admission = self.service.fleet.slab, self.service.matmul.admission
        units = range(len(self.service.fleet.units))
        until(lambda: not slab.lent_bytes and not admission.waiting and not any(map(self.keys, units)))

    def kill(self) -> None:
        """Kill the serving child, and wait for the next one."""
        before = self.products.generation
        self.products.kill()
        until(lambda: self.products.generation > before)


@contextmanager
def running(folder: Path, fleet: Fleets | None = None, **changes: Any) -> Iterator[Running]:
    chosen = {"devices": "opencl", "slab_bytes": 2**29, "max_body_bytes": 2**28, **changes}
    settings = Settings(data_dir=folder, **chosen)
    app, listener = create_app(settings, fleet=fleet), socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=protocol_factory(transfer_limits(settings), problem, transfers=state_of(app).threads.transfers),
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    server = Server(config, threading.Event())
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        until(lambda: server.started, 90)
        service: Service = state_of(app).slot.get()
        until(lambda: service.ready() is None and not any(one.pending for one in service.defaults.states()), 90)
        yield Running(listener.getsockname()[1], service)
    finally:
        server.should_exit = True
        thread.join(15)
        listener.close()
        assert not thread.is_alive()


def begun(connection: socket.socket, query: str, length: int, **headers: object) -> None:
    """Send a raw product's head."""
    connection.sendall(head("POST", f"/matmul?{query}", length=length, **{"Content_Type": RAW, **headers}))


def posted(running: Running, query: str, *parts: Any, **headers: object) -> tuple[int, dict[str, str], bytes]:
    """One product over a connection of its own."""
    with running.connect() as connection, Answers(connection) as answers:
        begun(connection, query, sum(memoryview(part).nbytes for part in parts), **headers)
        for part in parts:
            connection.sendall(memoryview(part).cast("B"))
        return answers.read()
