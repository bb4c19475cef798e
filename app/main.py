"""create_app and its lifespan: the only place where things are opened."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias, cast

import uvicorn
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client.core import Metric

from app import server, web
from app.api import router
from app.api.errors import refusal
from app.api.state import state_of
from app.devices.fleet import Fleet, open_fleet
from app.errors import Closing, StartRefused
from app.observability.tracing import Tracer
from app.server import TransferLimits
from app.services.access.api_keys import ApiKeys
from app.services.access.audit import AuditLog
from app.services.access.caller import Access
from app.services.access.secret import read_secret
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.cache.service import CacheService
from app.services.exports.service import ExportService
from app.services.health.cordons import Cordons
from app.services.health.status import ServiceHealth
from app.services.interchange.export import ResultsExport
from app.services.interchange.imports import ImportLimits, ImportService
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.idempotency import Idempotency
from app.services.jobs.retention import Keep, Retention, RetentionLimits
from app.services.jobs.service import JobService
from app.services.matmul.readiness import DefaultVerification
from app.services.matmul.resident_matrices import MatrixQuota, ResidentMatrices
from app.services.matmul.service import MatmulService
from app.services.profiles.runner import ProfileRunner
from app.services.profiles.service import PROFILE, ProfileService
from app.services.service import Service
from app.services.shared_memory.registry import SharedMemoryRegistry
from app.services.sharing.best import SharedBestConfigs
from app.services.sharing.claims import JobClaims
from app.services.sharing.follower import Followed
from app.services.sharing.name import service_name
from app.services.sharing.opening import claiming, following
from app.services.tuning.background import BackgroundTuning
from app.services.tuning.service import TuningService
from app.services.tuning.shape_tuner import TuningContext
from app.services.workloads.service import WorkloadService
from app.settings import Settings
from app.store.database import Database, joined, migrate, open_database
from app.store.folders import check_private, make_folder
from app.store.repository import DeviceRepository

_NO_TELEMETRY: Final = {"tracing": False, "metrics": False, "logs": False}  # FastAPI's: app.observability has ours
_LOOK: Final = 0.1  # seconds between looks for a second signal
Fleets: TypeAlias = Callable[[int], AbstractContextManager[Fleet]]  # opens devices with so many bytes of slab


class Telemetry(Tracer, Protocol):
    """What sends traces and metrics until it is stopped."""

    def start(self) -> None:
        """Send metrics from now on."""
        ...

    def stop(self) -> None:
        """Send what is left; blocks for seconds where nobody takes it."""
        ...


def _telemetry(settings: Settings, families: Callable[[], Iterable[Metric]]) -> Telemetry | None:
    """OpenTelemetry, which is imported where it is on alone; raises StartRefused if it is not installed."""
    if settings.otel == "off":
        return None
    try:
        from app.observability.otel import OtelTelemetry  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise StartRefused(f"TILEWISE_OTEL=on needs the extra otel: pip install 'tilewise[otel]' ({error})") from error
    return OtelTelemetry(families)


def _fleets(settings: Settings) -> Fleets:
    """What opens the devices of this host, or of a cluster; raises StartRefused if Ray is not installed."""
    sandboxed = settings.sandbox == "on"
    if settings.ray == "off":
        return partial(open_fleet, settings.devices, settings.cache, sandboxed=sandboxed)
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # read by its import: else a late call would start a cluster here
    try:
        from app.cluster.fleet import ClusterSettings, open_cluster  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise StartRefused(
            f"TILEWISE_RAY needs the extra cluster: pip install 'tilewise[cluster]' ({error})"
        ) from error
    insecure = settings.insecure == "yes"
    where = ClusterSettings(settings.ray, settings.devices, settings.cache, sandboxed, insecure)
    return partial(open_cluster, where)


@contextmanager
def opened(
    settings: Settings, who: str, closing: threading.Event | None = None, fleets: Fleets | None = None
) -> Iterator[Service]:
    """Open everything, in order, and close it in the other; raises DatabaseOwned, SchemaUnknown, NoDevice.

    `who` names this process to a second one that finds the database owned; `fleets` opens what devices there are.
    """
    _make_folders(settings)
    with ExitStack() as stack:
        shared = stack.enter_context(joined(settings.database, who))
        migrate(settings.database)
        database = stack.enter_context(open_database(settings.database))
        threads = stack.enter_context(ExitStack())  # these end once the devices are closed
        fleet = stack.enter_context((fleets or _fleets(settings))(settings.slab_bytes))
        claims = stack.enter_context(claiming(database, fleet.units, settings.lease)) if shared else None
        quarantine, best = _known(fleet, database)
        jobs, misses = _writing(stack, database, claims)
        imports = ImportService(database, best, quarantine, ImportLimits(settings.import_bytes, settings.import_days))
        matmul, matrices = _serving(settings, fleet, best, quarantine, misses)
        context = TuningContext(database, jobs, best, quarantine, imported=imports, claims=claims)
        defaults = DefaultVerification(fleet, quarantine, best, matmul.failures, matmul.deadlines, context.forecasts)
        threads.callback(defaults.join)
        stack.callback(defaults.stop)
        cordons = Cordons(fleet.units, database, settings.data_dir / "cordons.json")
        health = ServiceHealth(fleet, defaults, cordons, matmul, best, database, settings.data_dir)
        stack.callback(health.stop)
        regions = SharedMemoryRegistry(fleet, allowed=settings.shared_memory == "on")
        stack.callback(regions.close)
        results, idempotency = _kept(stack, settings, context, matmul, imports)
        background = _background(settings, context, misses, matmul)
        runner = ProfileRunner(database, jobs, best, settings.cache, defaults.await_settled)
        given, works = (context, fleet, misses, defaults.await_settled), {PROFILE: runner.run}
        tuning = TuningService(*given, queue=settings.jobs, background=background, works=works)
        stack.callback(tuning.stop)
        access = _access(stack, settings, database)
        if claims is not None and isinstance(best, SharedBestConfigs):
            followed = Followed(best, misses, quarantine, jobs, access.keys)
            stack.enter_context(following(database, who, claims, followed))
        tuning.start()
        known = settings.data_dir, database, fleet, best, jobs, tuning, matmul, matrices, regions, results
        kept = idempotency, misses, quarantine, defaults, health, access
        made = ExportService(fleet, best), WorkloadService(database, fleet, best, tuning), imports
        others = ResultsExport(jobs, best), CacheService(database), ProfileService(database, fleet, jobs, tuning)
        yield Service(*known, *kept, *made, *others, closing or threading.Event())


def _access(stack: ExitStack, settings: Settings, database: Database) -> Access:
    """Who may do what, and what is written of it; raises StartRefused."""
    keys = ApiKeys(database, read_secret(settings.secret), settings.admin_key_file)
    keys.start()
    audit = AuditLog(settings.data_dir / "audit.jsonl")
    stack.callback(audit.stop)
    audit.start()
    names = ["localhost", socket.gethostname(), settings.host, *settings.hosts.split(",")]
    return Access(keys, audit, settings.auth, filter(None, names))


def _known(fleet: Fleet, database: Database) -> tuple[Quarantine, BestConfigs]:
    """What the database knows of the fleet's devices, which it has from now on: what is not served, and the bests."""
    database.write(lambda session: DeviceRepository(session).save(*(unit.device for unit in fleet.units)))
    quarantine = Quarantine.load(database)
    kind = SharedBestConfigs if database.is_shared else BestConfigs
    return quarantine, kind.load(fleet, database, quarantine)


def _writing(stack: ExitStack, database: Database, claims: JobClaims | None) -> tuple[JobService, MissCounter]:
    """Jobs and misses, whose threads write until the stack closes."""
    jobs, misses = JobService(database, None if claims is None else claims.held), MissCounter(database)
    for each in (jobs, misses):
        stack.callback(each.stop)
        each.start()
    return jobs, misses


def _make_folders(settings: Settings) -> None:
    """Make the folders of the data and of compiled kernels; raises StartRefused."""
    for folder in (settings.data_dir, settings.cache):
        try:
            make_folder(folder)
            check_private(folder)
        except PermissionError as error:
            if error.errno is not None:
                raise StartRefused(f"the folder {folder} cannot be made: {error.strerror}") from error
            raise StartRefused(f"{error}; or choose another with TILEWISE_DATA_DIR") from error
        except OSError as error:
            message = f"the folder {folder} cannot be made: {error.strerror or error}"
            raise StartRefused(f"{message}; choose another with TILEWISE_DATA_DIR") from error


def _background(
    settings: Settings, context: TuningContext, misses: MissCounter, matmul: MatmulService
) -> BackgroundTuning | None:
    """The background tuning of idle devices, or None if it is off."""
    if settings.idle_tuning != "on":
        return None
    return BackgroundTuning(context.database, context.best, misses, matmul.idle_seconds)


def _kept(
    stack: ExitStack,
    settings: Settings,
    context: TuningContext,
    matmul: MatmulService,
    imports: ImportService,
) -> tuple[AsyncProducts, Idempotency]:
    """What is kept of products that are jobs, and of requests with a key; both take up what was left unfinished."""
    keep = settings.data_dir / "results", settings.result_ttl, settings.result_bytes, settings.result_files
    database, jobs, claims = context.database, context.jobs, context.claims
    results = AsyncProducts(database, jobs, matmul, *keep, claims=claims)
    scope = "" if claims is None else service_name(settings.data_dir)
    idempotency = Idempotency(database, settings.idempotency_ttl, scope=scope)
    results.start()
    stack.callback(results.stop)
    idempotency.start()
    retention = Retention(database, _retention_limits(settings), results.store.holds, imports.expire)
    stack.callback(retention.stop)
    retention.start()
    return results, idempotency


def _retention_limits(settings: Settings) -> RetentionLimits:
    """How much is kept of what is stored."""
    return RetentionLimits(
        jobs=Keep(settings.jobs_kept, settings.jobs_days),
        trials=Keep(settings.trials_kept, settings.trials_days),
        misses=Keep(settings.misses_kept, settings.misses_days),
    )


def _serving(
    settings: Settings, fleet: Fleet, best: BestConfigs, quarantine: Quarantine, misses: MissCounter
) -> tuple[MatmulService, ResidentMatrices]:
    """Products, and the matrices that stay for them: the slab's room is theirs only as long as nobody else wants it."""
    matmul = MatmulService(
        fleet,
        best,
        quarantine,
        misses,
        queue=settings.queue,
        max_bytes=settings.max_body_bytes,
        vendor=settings.vendor == "serve",
        kept_bytes=settings.resident_device_bytes,
        share=settings.share,
        max_batch=settings.max_batch,
        device_bytes=settings.device_bytes,
    )
    quota = MatrixQuota(settings.resident_bytes, settings.resident_count)
    matrices = ResidentMatrices(fleet.slab, quota, matmul.device_cache.drop)
    fleet.slab.reclaim = matrices.evict_for
    return matmul, matrices


def create_app(
    settings: Settings, who: str = "a service", closing: threading.Event | None = None, *, fleet: Fleets | None = None
) -> FastAPI:
    """The application; what it needs is opened when it starts and closed when it stops.

    `fleet` opens its devices in place of this host's, as tests and benchmarks of the data path want it.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        telemetry = _telemetry(settings, state_of(app).metrics.families)
        with opened(settings, who, closing, fleet) as service:
            state = state_of(app)
            state.slot.open(service)
            state.threads.start()
            state.tracing.tracer = telemetry
            state.tracing.note_request = service.tuning.traces.note_request
            if telemetry is not None:
                telemetry.start()
            service.defaults.start()
            service.health.start()
            try:
                yield
            finally:
                service.closing.set()
                state.threads.stop()
                if telemetry is not None:
                    await asyncio.get_running_loop().run_in_executor(None, telemetry.stop)

    app: FastAPI = FastAPIOffline(
        title="Tilewise",
        version=version("tilewise"),
        summary="Finds the tile size that makes each matrix product fast, proves it, and serves the products.",
        lifespan=lifespan,
        docs_url=None,  # its pages have scripts in them
        redoc_url=None,
        telemetry=_NO_TELEMETRY,
        redirect_slashes=False,  # a path is what it is: a client would lose its body, and its method, on the way
    )
    limits, moving, folder = transfer_limits(settings), settings.transfer_threads, settings.operand_dir
    router.include(app, max_body_bytes=settings.max_body_bytes, limits=limits, transfers=moving, operands=folder)
    web.include(app)
    return app


def transfer_limits(settings: Settings) -> TransferLimits:
    """How slow a client may be."""
    rate, timeout = settings.min_transfer_rate, settings.slab_timeout
    return TransferLimits(settings.idle_timeout, settings.transfer_timeout, rate, timeout)


@dataclass(frozen=True)
class Drain:
    """How long the end waits for what is in hand, and the work that no connection waits for."""

    seconds: float = 0.0
    tasks: Collection[asyncio.Task[None]] = ()


class Server(uvicorn.Server):
    """uvicorn's server, on a Unix socket too, that ends event streams first: they would outlast the shutdown.

    Every connection comes by way of an acceptor, which refuses those that the admission check does not let in.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        closing: threading.Event,
        uds: socket.socket | None = None,
        admission: server.AdmissionCheck | None = None,
        limits: server.ConnectionLimits | None = None,
        drain: Drain | None = None,
        tls: server.ReloadingTls | None = None,
    ) -> None:
        super().__init__(config)
        self._closing, self._uds, self._admission, self._limits = closing, uds, admission, limits
        self._drain, self._tls = drain or Drain(), tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen: connections come by way of acceptors alone."""
        await super().startup([])
        for listener in sockets or []:
            self._accept(listener, self._tls)
        if self._uds is not None:
            self._accept(self._uds, None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams and readiness, finish what is in hand, and shut down as uvicorn does.

        Meanwhile the service still listens, so that those who ask whether it is ready hear that it is not.
        """
        path = self._uds.getsockname() if self._uds is not None else None
        self._closing.set()
        await self._finish()
        if not self.force_exit:
            await asyncio.gather(*(each.end_handshakes() for each in cast("list[server.Acceptor]", self.servers)))
        await super().shutdown([*(sockets or []), *([self._uds] if self._uds is not None else [])])
        if self.force_exit:  # what uvicorn leaves out then
            self._cancel()
            await self.lifespan.shutdown()
        if path is not None:
            Path(path).unlink(missing_ok=True)  # noqa: ASYNC240 - nothing is served any more

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """For signals: the first has what is in hand finished, the second does not."""
        again = self.should_exit
        super().handle_exit(sig, frame)
        self.force_exit = self.force_exit or again

    async def _finish(self) -> None:
        """Wait for what is in hand now and for jobs that it becomes, no longer than the drain may take."""
        left, until = {*self.server_state.tasks, *self._drain.tasks}, monotonic() + self._drain.seconds
        while left and not self.force_exit and (seconds := until - monotonic()) > 0:
            _, left = await asyncio.wait(left, timeout=min(seconds, _LOOK))
            left |= {*self._drain.tasks}

    def _cancel(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    def _accept(self, listener: socket.socket, tls: server.ReloadingTls | None) -> None:
        closing = refusal(Closing("the service is shutting down"))
        given = self._protocol, self._admission, self.server_state, tls, self._limits, closing
        acceptor = server.Acceptor(listener, *given)
        acceptor.start(self.config.backlog)
        self.servers.append(cast("Any", acceptor))  # it is closed as a loop's server is

    def _protocol(self) -> Any:
        """One connection's protocol, as uvicorn makes it for its own listeners."""
        state, loop = self.lifespan.state, asyncio.get_running_loop()
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=state, _loop=loop)
