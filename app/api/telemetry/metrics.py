"""What GET /metrics tells: requests counted as they pass, the rest read when it is asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from time import perf_counter
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.types import Scope

from app.devices.gpu_health import GpuReading
from app.errors import StoreFailed
from app.observability.loop_lag import LoopLag
from app.services.health.status import STATES
from app.services.jobs.service import ENDED
from app.services.service import Service

_SECONDS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Where a request's scope says which device made its product, when, and the seconds of receiving it.
MADE: Final = "tilewise.made"
_JOBS: Final = ("queued", "running", *sorted(ENDED))  # told even where there is none: an alert compares
_KEPT: Final = 4096  # metrics with labels of one kind
_EXPONENT: Final = re.compile(rb"(?<= )[0-9.]+e[+-][0-9]+$", re.MULTILINE)  # some readers stop at the e
_SENSORS: Final[Mapping[str, tuple[str, str]]] = {
    "celsius": ("tilewise_device_temperature_celsius", "The GPU's temperature."),
    "watts": ("tilewise_device_power_watts", "The power that the GPU draws."),
    "remapped_rows": ("tilewise_device_remapped_rows", "Rows of the GPU's memory that were remapped."),
}
_ERRORS: Final = ("corrected", "uncorrected")


class Metrics:
    """One application's metrics, in a registry of its own."""

    def __init__(self, service: Callable[[], Service]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series each that says when it began
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tilewise_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._took = self._histogram("tilewise_request_seconds", "Seconds to the answer's end.", "route")
        self._phases = self._histogram(
            "tilewise_product_phase_seconds",
            "Seconds of a product's phases; send is from its making to the answer's end.",
            "phase",
            "device",
        )
        self._totals = self._histogram(
            "tilewise_product_seconds", "Seconds from a product's request to its answer's end.", "device"
        )
        self._late = self._histogram(
            "tilewise_event_loop_lag_seconds",
            "Seconds by which the event loop was late, looked at four times a second.",
        )
        self._invalid = Counter(
            "tilewise_invalid_requests",
            "What was sent and is no request, by its answer's status.",
            ["status"],
            registry=self._registry,
        )
        self._handshakes = Counter(
            "tilewise_tls_handshake_failures", "TLS handshakes that failed, or took too long.", registry=self._registry
        )
        self._connections = Gauge("tilewise_open_connections", "Connections that are open.", registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Now(service))
        # prometheus_client takes ten times as long to look a metric up by its labels.
        self._answered = lru_cache(_KEPT)(self._requests.labels)
        self._routed = lru_cache(_KEPT)(self._took.labels)
        self._phase = lru_cache(_KEPT)(self._phases.labels)
        self._total = lru_cache(_KEPT)(self._totals.labels)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=_SECONDS)

    def loop_lag(self) -> LoopLag:
        """What measures how late the event loop is."""
        return LoopLag(self._late.observe)

    def count_connections(self, count: Callable[[], int]) -> None:
        """Ask `count` for the number of open connections, at every look."""
        self._connections.set_function(count)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._answered(method, route, str(status)).inc()
        self._routed(route).observe(seconds)

    def invalid_request(self, status: int) -> None:
        """Count what was answered without being a request."""
        self._invalid.labels(str(status)).inc()

    def failed_handshake(self) -> None:
        """Count a connection that got no further."""
        self._handshakes.inc()

    def product(self, scope: Scope, device: str, seconds: Mapping[str, float]) -> None:
        """Count a product by its phases; how long its answer takes is counted at the end of the request of `scope`."""
        self.phases(device, seconds)
        scope[MADE] = device, perf_counter(), seconds.get("receive", 0.0)

    def phases(self, device: str, seconds: Mapping[str, float]) -> None:
        """Count phases of a product, which may be answered another time."""
        for phase, value in seconds.items():
            self._phase(phase, device).observe(value)

    def sent(self, device: str, send: float, total: float) -> None:
        """Count the end of a product's answer."""
        self._phase("send", device).observe(send)
        self._total(device).observe(total)

    def families(self) -> Iterable[Metric]:
        """Everything. Blocks for a query."""
        return self._registry.collect()

    def text(self) -> bytes:
        """Everything in Prometheus' text format, numbers without exponents. Blocks for a query."""
        return _EXPONENT.sub(_plain, generate_latest(self._registry))


class _Now(Collector):
    """What the service's own state says at this moment."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        service, slab = self._service(), self._service().fleet.slab
        yield InfoMetricFamily("tilewise_build", "The service's version.", {"version": version("tilewise")})
        yield GaugeMetricFamily("tilewise_slab_lent_bytes", "Slab bytes that are lent.", slab.lent_bytes)
        yield GaugeMetricFamily("tilewise_slab_size_bytes", "Bytes of the slab.", slab.nbytes)
        admission = service.matmul.admission
        yield GaugeMetricFamily("tilewise_products_waiting", "Products admitted and not made yet.", admission.waiting)
        yield GaugeMetricFamily("tilewise_queue_size", "Products that may wait at once.", admission.limits.queue)
        yield GaugeMetricFamily(
            "tilewise_result_bytes", "Bytes of disk for results that are kept.", service.results.store.nbytes
        )
        yield GaugeMetricFamily("tilewise_ready", "1 once products are served.", float(service.ready() is None))
        yield _restarts(service)
        yield from _health(service)
        yield from _residents(service)
        yield from _tuning(service)
        yield CounterMetricFamily(
            "tilewise_misses", "Answers that were less than exact, products and configs.", service.misses.total
        )
        yield CounterMetricFamily(
            "tilewise_idle_trials", "Trials that nobody ordered, of jobs that ended.", service.tuning.idle_trials
        )
        yield from _disk(service)
        yield from _store(service)


def _disk(service: Service) -> Iterable[Metric]:
    try:
        found = os.statvfs(service.data_dir)
    except OSError:  # a folder that is gone, or a disk that fails: what cannot be read is not told
        return
    yield GaugeMetricFamily(
        "tilewise_data_free_bytes", "Bytes of the data folder's disk that are free.", found.f_bavail * found.f_frsize
    )
    yield GaugeMetricFamily(
        "tilewise_data_size_bytes", "Bytes of the data folder's disk.", found.f_blocks * found.f_frsize
    )
    yield GaugeMetricFamily(
        "tilewise_data_free_inodes", "Files that the data folder's disk still takes.", found.f_favail
    )


def _store(service: Service) -> Iterable[Metric]:
    """What the database tells, and whether it does: when it fails, all other metrics are wanted most."""
    try:
        tally = service.jobs.counts()
    except StoreFailed:
        tally = None
    yield GaugeMetricFamily("tilewise_store_up", "1 if the database answered this look.", float(tally is not None))
    yield CounterMetricFamily(
        "tilewise_store_errors", "Queries and commits that the database failed.", service.database.failures
    )
    if tally is not None:
        jobs = {**dict.fromkeys(_JOBS, 0), **tally.jobs}
        yield _by("tilewise_jobs", "Jobs by state.", "state", jobs)
        yield _by("tilewise_trials", "Stored trials by outcome.", "outcome", tally.trials)


def _residents(service: Service) -> Iterable[Metric]:
    tally, copies = service.matrices.counts(), service.matmul.device_cache
    yield GaugeMetricFamily("tilewise_resident_matrices", "Matrices that are resident.", tally.count)
    yield GaugeMetricFamily("tilewise_resident_bytes", "Bytes of the slab that resident matrices take.", tally.nbytes)
    text = "Bytes of a device's memory that copies of resident matrices take."
    yield _by("tilewise_resident_device_bytes", text, "device", copies.bytes())
    for what, text, count in (
        ("evictions", "Resident matrices that gave way to others.", tally.evictions),
        ("hits", "Resident operands that were on the device already.", copies.hits),
        ("loads", "Resident operands that had to be copied to the device.", copies.loads),
    ):
        yield CounterMetricFamily(f"tilewise_resident_{what}", text, count)


def _plain(number: re.Match[bytes]) -> bytes:
    return format(Decimal(number[0].decode()), "f").encode()


def _restarts(service: Service) -> Metric:
    family = CounterMetricFamily("tilewise_child_restarts", "Children that were replaced.", labels=["device", "role"])
    for unit in service.fleet.units:
        for role in ("products", "trials"):
            family.add_metric([unit.device.id, role], max(0, getattr(unit, role).generation - 1))
    return family


def _health(service: Service) -> Iterable[Metric]:
    """What the service's health says at this moment."""
    state = GaugeMetricFamily(
        "tilewise_device_state", "1 for the state that a device is in.", labels=["device", "state"]
    )
    for device in service.health.devices():
        for name in STATES:
            state.add_metric([device.device, name], float(device.state == name))
    yield state
    yield _verified(service)
    yield from _of_children(service)
    gpus = service.health.gpus
    if gpus is not None:
        xids = CounterMetricFamily("tilewise_device_xids", "Xids that the driver reported.", labels=["device", "xid"])
        for (name, number), count in list(gpus.xids.items()):
            xids.add_metric([name, str(number)], count)
        yield xids
        yield from sensor_metrics(dict(gpus.readings))


def _verified(service: Service) -> Metric:
    family = CounterMetricFamily(
        "tilewise_verification_products", "Products with known answers, of idle devices.", labels=["device"]
    )
    for device, verification in service.health.verification.items():
        family.add_metric([device], verification.total)
    return family


def _of_children(service: Service) -> Iterable[Metric]:
    """How often children hung, and how often they were killed by nobody of the service: by the OOM killer, say."""
    labels = ["device", "role"]
    hangs = CounterMetricFamily("tilewise_child_hangs", "Children that hung.", labels=labels)
    kills = CounterMetricFamily("tilewise_child_kills", "Children that were killed from outside.", labels=labels)
    for unit in service.fleet.units:
        for role, worker in (("products", unit.products), ("trials", unit.trials)):
            hangs.add_metric([unit.device.id, role], worker.hangs)
            kills.add_metric([unit.device.id, role], worker.kills_from_outside)
    return hangs, kills


def sensor_metrics(readings: Mapping[str, GpuReading]) -> Iterable[Metric]:
    """The metrics of what was last read of GPUs, by their devices."""
    for member, (name, text) in _SENSORS.items():
        family = GaugeMetricFamily(name, text, labels=["device"])
        for device, reading in readings.items():
            value = getattr(reading, member)
            if value is not None:
                family.add_metric([device], value)
        yield family
    errors = CounterMetricFamily(
        "tilewise_device_memory_errors",
        "Errors of the GPU's memory since its driver was loaded.",
        labels=["device", "kind"],
    )
    for device, reading in readings.items():
        for kind in _ERRORS:
            count = getattr(reading, kind)
            if count is not None:
                errors.add_metric([device, kind], count)
    yield errors


def _tuning(service: Service) -> Iterable[Metric]:
    yield CounterMetricFamily("tilewise_tune_seconds", "Seconds spent on tune jobs.", service.tuning.total)
    yield CounterMetricFamily(
        "tilewise_tune_child_seconds",
        "Seconds of tune jobs inside children, compiling, verifying and measuring.",
        service.tuning.inside,
    )


def _by(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
