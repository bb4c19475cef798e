"""create_app and its lifespan: the only place where things are opened."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, cast

import uvicorn
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app import api, web
from app.api import wire
from app.api.pace import Pace
from app.devices.fleet import Fleet, open_fleet
from app.errors import DeviceError
from app.services.attempts import Ledger
from app.services.best import BestConfigs
from app.services.idempotency import Idempotency
from app.services.idle import Idle
from app.services.jobs import Jobs
from app.services.matmul import Matmul
from app.services.matrices import Matrices, Quota
from app.services.quarantine import Quarantine
from app.services.regions import Regions
from app.services.results import Results
from app.services.tuning import Tuning
from app.services.wants import Wants
from app.settings import Settings
from app.store.engine import Database, migrate, open_database, owned
from app.store.repository import Devices

Fleets: TypeAlias = Callable[[int], AbstractContextManager[Fleet]]  # opens devices with so many bytes of slab


@dataclass(frozen=True)
class Service:
    """Everything that is open while the service, or one command of the CLI, runs."""

    settings: Settings
    database: Database
    fleet: Fleet
    best: BestConfigs
    jobs: Jobs
    tuning: Tuning
    matmul: Matmul
    matrices: Matrices
    regions: Regions
    results: Results
    idempotency: Idempotency
    wants: Wants
    closing: threading.Event
    _unready: list[str] = field(default_factory=lambda: ["the float32 defaults are being verified"])

    def ready(self) -> str | None:
        """Why products are not served yet, or None."""
        if self.closing.is_set():
            return "the service is shutting down"
        return self._unready[0] if self._unready else None

    def warm(self) -> None:
        """Verify the float32 defaults of every device, which makes the service ready."""
        try:
            self.fleet.unit(None)
            self.matmul.verify_defaults()
        except DeviceError as error:
            self._unready[:] = [error.message]
        else:
            self._unready.clear()


@contextmanager
def opened(
    settings: Settings, who: str, closing: threading.Event | None = None, fleets: Fleets | None = None
) -> Iterator[Service]:
    """Open everything, in order, and close it in the other; raises DatabaseOwned, SchemaUnknown, NoDevice.

    `who` names this process to a second one that finds the database owned; `fleets` opens what devices there are.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    settings.cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(owned(settings.database, who))
        migrate(settings.database)
        database = stack.enter_context(open_database(settings.database))
        fleets = fleets or partial(open_fleet, settings.devices, settings.cache)
        fleet = stack.enter_context(fleets(settings.slab_bytes))
        database.write(lambda session: Devices(session).save(*(unit.device for unit in fleet.units)))
        quarantine = Quarantine.load(database)
        best = BestConfigs.load(fleet, database, quarantine)
        jobs, wants = Jobs(database), Wants(database)
        stack.callback(wants.stop)
        wants.start()
        matmul, matrices = _serving(settings, fleet, best, quarantine, wants)
        regions = Regions(fleet, allowed=settings.shared_memory == "on")
        stack.callback(regions.close)
        results, idempotency = _kept(settings, database, jobs, matmul)
        stack.callback(results.stop)
        tuning = _tuning(settings, Ledger(database, jobs, best, quarantine), fleet, wants, matmul)
        stack.callback(tuning.stop)
        tuning.start()
        yield Service(
            settings,
            database,
            fleet,
            best,
            jobs,
            tuning,
            matmul,
            matrices,
            regions,
            results,
            idempotency,
            wants,
            closing or threading.Event(),
        )


def _tuning(settings: Settings, ledger: Ledger, fleet: Fleet, wants: Wants, matmul: Matmul) -> Tuning:
    """Tuning, of what was asked for and not tuned too while no product is wanted, where that is set."""
    idle = Idle(ledger.database, ledger.best, wants, matmul.quiet) if settings.idle_tuning == "on" else None
    return Tuning(ledger, fleet, wants, queue=settings.jobs, idle=idle)


def _kept(settings: Settings, database: Database, jobs: Jobs, matmul: Matmul) -> tuple[Results, Idempotency]:
    """What is kept of products that are jobs, and of requests with a key; both take up what was left unfinished."""
    keep = settings.data_dir / "results", settings.result_ttl, settings.result_bytes
    results, idempotency = Results(database, jobs, matmul, *keep), Idempotency(database, settings.idempotency_ttl)
    results.start()
    idempotency.start()
    return results, idempotency


def _serving(
    settings: Settings, fleet: Fleet, best: BestConfigs, quarantine: Quarantine, wants: Wants
) -> tuple[Matmul, Matrices]:
    """Products, and the matrices that stay for them: the slab's room is theirs only as long as nobody else wants it."""
    matmul = Matmul(
        fleet,
        best,
        quarantine,
        wants,
        queue=settings.queue,
        max_bytes=settings.max_body_bytes,
        vendor=settings.vendor == "serve",
        kept_bytes=settings.resident_device_bytes,
        share=settings.share,
        gather=settings.gather,
    )
    quota = Quota(settings.resident_bytes, settings.resident_count)
    matrices = Matrices(fleet.slab, quota, matmul.copies.drop)
    fleet.slab.give_way = matrices.give_way
    return matmul, matrices


def create_app(
    settings: Settings, who: str = "a service", closing: threading.Event | None = None, *, fleet: Fleets | None = None
) -> FastAPI:
    """The application; what it needs is opened when it starts and closed when it stops.

    `fleet` opens its devices in place of this host's, as tests and benchmarks of the data path want it.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with opened(settings, who, closing, fleet) as service:
            app.state.service = service
            warming = threading.Thread(target=service.warm, name="verify defaults", daemon=True)
            warming.start()
            yield
            service.closing.set()

    app: FastAPI = FastAPIOffline(
        title="Tilewise",
        version=version("tilewise"),
        summary="Finds the tile size that makes each matrix product fast, proves it, and serves the products.",
        lifespan=lifespan,
    )
    api.include(app, max_body_bytes=settings.max_body_bytes, pace=pace(settings))
    web.include(app)
    return app


def pace(settings: Settings) -> Pace:
    """How slow a client may be."""
    return Pace(settings.stalled_seconds, settings.receipt_seconds, settings.least_rate)


class Server(uvicorn.Server):
    """uvicorn's server, on a Unix socket too, that ends event streams first: they would outlast the shutdown.

    With a gate, connections that come to nothing end before they are the loop's, unless TLS hides what they say.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        closing: threading.Event,
        uds: socket.socket | None = None,
        gate: wire.Gate | None = None,
    ) -> None:
        super().__init__(config)
        self._closing, self._uds, self._gate = closing, uds, gate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self._gate is None or self.config.is_ssl:
            await super().startup(sockets)
        else:
            await super().startup([])
            for listener in sockets or []:
                self._accept(listener, self._gate)
        if self._uds is not None:
            unix = await asyncio.get_running_loop().create_unix_server(self._protocol, sock=self._uds)
            self.servers.append(unix)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell streams to end, then shut down as uvicorn does; the Unix socket's path goes with it."""
        path = self._uds.getsockname() if self._uds is not None else None
        self._closing.set()
        await super().shutdown(sockets)
        if path is not None:
            Path(path).unlink(missing_ok=True)  # noqa: ASYNC240 - nothing is served any more

    def _accept(self, listener: socket.socket, gate: wire.Gate) -> None:
        acceptor = wire.Acceptor(listener, self._protocol, gate, self.server_state)
        acceptor.start(self.config.backlog)
        self.servers.append(cast("Any", acceptor))  # it is closed as a loop's server is

    def _protocol(self) -> Any:
        """One connection's protocol, as uvicorn makes it for its own listeners."""
        state, loop = self.lifespan.state, asyncio.get_running_loop()
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=state, _loop=loop)
