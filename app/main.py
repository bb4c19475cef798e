"""create_app and its lifespan: the only place where things are opened."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version

import uvicorn
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app import api, web
from app.devices.fleet import Fleet, open_fleet
from app.errors import DeviceError
from app.services.attempts import Ledger
from app.services.best import BestConfigs
from app.services.idle import Idle
from app.services.jobs import Jobs
from app.services.matmul import Matmul
from app.services.quarantine import Quarantine
from app.services.results import Results
from app.services.tuning import Tuning
from app.services.wants import Wants
from app.settings import Settings
from app.store.engine import Database, migrate, open_database, owned
from app.store.repository import Devices


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
    results: Results
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
def opened(settings: Settings, who: str, closing: threading.Event | None = None) -> Iterator[Service]:
    """Open everything, in order, and close it in the other; raises DatabaseOwned, SchemaUnknown, NoDevice.

    `who` names this process to a second one that finds the database owned.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    settings.cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(owned(settings.database, who))
        migrate(settings.database)
        database = stack.enter_context(open_database(settings.database))
        fleet = stack.enter_context(open_fleet(settings.devices, settings.cache, settings.slab_bytes))
        database.write(lambda session: Devices(session).save(*(unit.device for unit in fleet.units)))
        quarantine = Quarantine.load(database)
        best = BestConfigs.load(fleet, database, quarantine)
        jobs, wants = Jobs(database), Wants(database)
        stack.callback(wants.stop)
        wants.start()
        matmul = Matmul(
            fleet,
            best,
            quarantine,
            wants,
            queue=settings.queue,
            max_bytes=settings.max_body_bytes,
            vendor=settings.vendor == "serve",
        )
        results = Results(database, jobs, matmul, settings.data_dir / "results", settings.result_ttl)
        results.start()
        idle = Idle(database, best, wants, matmul.quiet) if settings.idle_tuning == "on" else None
        ledger = Ledger(database, jobs, best, quarantine)
        tuning = Tuning(ledger, fleet, wants, queue=settings.jobs, idle=idle)
        stack.callback(tuning.stop)
        tuning.start()
        yield Service(
            settings, database, fleet, best, jobs, tuning, matmul, results, wants, closing or threading.Event()
        )


def create_app(settings: Settings, who: str = "a service", closing: threading.Event | None = None) -> FastAPI:
    """The application; what it needs is opened when it starts and closed when it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with opened(settings, who, closing) as service:
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
    api.include(app, max_body_bytes=settings.max_body_bytes)
    web.include(app)
    return app


class Server(uvicorn.Server):
    """uvicorn's server that ends event streams first: they would otherwise outlast the shutdown."""

    def __init__(self, config: uvicorn.Config, closing: threading.Event) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell streams to end, then shut down as uvicorn does."""
        self._closing.set()
        await super().shutdown(sockets)
