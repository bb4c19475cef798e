"""What GET /metrics tells: requests counted as they pass, the rest read when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.services.service import Service

_SECONDS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_MADE: Final = "tilewise.made"  # where a request's scope says which device made its product, and when
_KEPT: Final = 4096  # metrics with labels of one kind
_EXPONENT: Final = re.compile(rb"(?<= )[0-9.]+e[+-][0-9]+$", re.MULTILINE)  # some readers stop at the e


class Metrics:
    """One application's metrics, in a registry of its own."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tilewise_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._took = Histogram(
            "tilewise_request_seconds",
            "Seconds to the answer's end.",
            ["route"],
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._phases = Histogram(
            "tilewise_product_seconds",
            "Seconds of a product's phases; send is from its making to the answer's end, total is all of it.",
            ["phase", "device"],
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._registry.register(_Now(service))
        # prometheus_client takes ten times as long to look a metric up by its labels.
        self._answered = lru_cache(_KEPT)(self._requests.labels)
        self._routed = lru_cache(_KEPT)(self._took.labels)
        self._phase = lru_cache(_KEPT)(self._phases.labels)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._answered(method, route, str(status)).inc()
        self._routed(route).observe(seconds)

    def product(self, scope: Scope, device: str, seconds: Mapping[str, float]) -> None:
        """Count a product by its phases; how long its answer takes is counted at the end of the request of `scope`."""
        self.phases(device, seconds)
        scope[_MADE] = device, perf_counter()

    def phases(self, device: str, seconds: Mapping[str, float]) -> None:
        """Count phases of a product, which may be answered another time."""
        for phase, value in seconds.items():
            self._phase(phase, device).observe(value)

    def sent(self, device: str, send: float, total: float) -> None:
        """Count the end of a product's answer."""
        self._phase("send", device).observe(send)
        self._phase("total", device).observe(total)

    def text(self) -> bytes:
        """Everything in Prometheus' text format, numbers without exponents. Blocks for a query."""
        return _EXPONENT.sub(_plain, generate_latest(self._registry))


class Counted:
    """ASGI middleware that counts every request by its route's template."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it at its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 500, perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            ended = perf_counter()
            self._metrics.request(_method(scope["method"]), route, status, ended - started)
            if _MADE in scope:
                device, made = scope[_MADE]
                self._metrics.sent(device, ended - made, ended - started)


class _Now(Collector):
    """What the service's own state says at this moment."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        service = self._service()
        yield GaugeMetricFamily("tilewise_slab_lent_bytes", "Slab bytes that are lent.", service.fleet.slab.lent_bytes)
        yield GaugeMetricFamily(
            "tilewise_products_waiting", "Products admitted and not made yet.", service.matmul.admission.waiting
        )
        yield GaugeMetricFamily(
            "tilewise_result_bytes", "Bytes of disk for results that are kept.", service.results.shelf.nbytes
        )
        yield GaugeMetricFamily("tilewise_ready", "1 once products are served.", float(service.ready() is None))
        yield _restarts(service)
        yield from _residents(service)
        yield _tuning(service)
        yield CounterMetricFamily(
            "tilewise_misses", "Answers that were less than exact, products and configs.", service.misses.total
        )
        yield CounterMetricFamily(
            "tilewise_idle_trials", "Trials that nobody ordered, of jobs that ended.", service.tuning.idle_trials
        )
        tally = service.jobs.tally()
        yield _by("tilewise_jobs", "Jobs by state.", "state", tally.jobs)
        yield _by("tilewise_trials", "Stored trials by outcome.", "outcome", tally.trials)


def _residents(service: Service) -> Iterable[Metric]:
    tally, copies = service.matrices.tally(), service.matmul.copies
    yield GaugeMetricFamily("tilewise_resident_matrices", "Matrices that are kept by name.", tally.count)
    yield GaugeMetricFamily("tilewise_resident_bytes", "Their bytes in the slab.", tally.nbytes)
    yield _by("tilewise_resident_device_bytes", "Bytes of their copies on a device.", "device", copies.bytes())
    yield CounterMetricFamily("tilewise_resident_evictions", "Matrices that gave way to others.", tally.evictions)
    yield CounterMetricFamily("tilewise_resident_hits", "Operands that were on the device already.", copies.hits)
    yield CounterMetricFamily("tilewise_resident_loads", "Resident operands that were copied to it.", copies.loads)


def _plain(number: re.Match[bytes]) -> bytes:
    return format(Decimal(number[0].decode()), "f").encode()


def _restarts(service: Service) -> Metric:
    family = CounterMetricFamily("tilewise_child_restarts", "Children that were replaced.", labels=["device", "role"])
    for unit in service.fleet.units:
        for role in ("products", "trials"):
            family.add_metric([unit.device.id, role], max(0, getattr(unit, role).generation - 1))
    return family


def _tuning(service: Service) -> Metric:
    text = "Seconds spent on tune jobs: in all, and inside children compiling, verifying and measuring."
    family = CounterMetricFamily("tilewise_tune_seconds", text, labels=["where"])
    family.add_metric(["inside"], service.tuning.inside)
    family.add_metric(["total"], service.tuning.total)
    return family


def _by(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _method(method: str) -> str:
    """A method that HTTP knows: what callers invent must not grow the registry."""
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "other"
