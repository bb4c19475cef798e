"""Telemetry by OpenTelemetry: spans, and the metrics of GET /metrics, sent by OTLP over HTTP.

The only module that imports OpenTelemetry, which the extra `otel` installs. Its own settings, OTEL_*, say where to.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from time import monotonic, time_ns
from typing import Any, Final, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtlpSpan
from opentelemetry.trace import Tracer as OtlpTracer
from prometheus_client.core import Metric

from app.observability.logs import one_line
from app.observability.request_context import TraceParent
from app.observability.tracing import Attributes, now

_LOG: Final = logging.getLogger(__name__)
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"  # milliseconds
_MINUTE: Final = 60_000.0
_ENDING: Final = 3.0  # seconds that the end waits for what is left to be sent
_PAUSE: Final = 60.0  # seconds between two complaints of an exporter
_UNITS: Final = {"seconds": "s", "bytes": "By", "celsius": "Cel", "watts": "W"}
Families = Callable[[], Iterable[Metric]]


class OtelSpan:
    """A span of OpenTelemetry's."""

    def __init__(self, tracer: OtlpTracer, span: OtlpSpan) -> None:
        self._tracer, self._span = tracer, span

    @property
    def trace_id(self) -> str:
        """The trace's id, as 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def child(self, name: str, start: int | None = None, attributes: Attributes | None = None) -> OtelSpan:
        """A span inside it."""
        inside = set_span_in_context(self._span)
        began = now() if start is None else start
        return OtelSpan(self._tracer, self._tracer.start_span(name, inside, start_time=began, attributes=attributes))

    def end(self, at: int | None = None, error: BaseException | str | None = None) -> None:
        """End it, as failed where there is an error."""
        if error is not None:
            text = one_line(error) if isinstance(error, BaseException) else error
            self._span.set_status(Status(StatusCode.ERROR, text))
            if isinstance(error, BaseException):
                self._span.set_attribute("error.type", type(error).__name__)
        self._span.end(now() if at is None else at)

    def describe(self, name: str, attributes: Attributes) -> None:
        """Give it another name, and more attributes."""
        self._span.update_name(name)
        self._span.set_attributes(dict(attributes))


class OtelTelemetry:
    """Sends spans as they end, and metrics every OTEL_METRIC_EXPORT_INTERVAL, from threads of its own."""

    def __init__(self, families: Families) -> None:
        self._families, self._started = families, time_ns()
        self._resource = _resource()
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)  # `stop` is bounded
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        for exporter in (OTLPSpanExporter, OTLPMetricExporter):
            logging.getLogger(exporter.__module__).addFilter(_OneAMinute())
        self._tracer = self._provider.get_tracer("tilewise", version("tilewise"))
        self._exporter = OTLPMetricExporter()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics export", daemon=True)

    def begin(self, name: str, parent: TraceParent | None, start: int) -> OtelSpan:
        """A span of a request, in its caller's trace or in a new one."""
        context = None if parent is None else set_span_in_context(NonRecordingSpan(_remote(parent)))
        span = self._tracer.start_span(name, context, kind=SpanKind.SERVER, start_time=start)
        return OtelSpan(self._tracer, span)

    def start(self) -> None:
        """Send metrics from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, as far as it can be sent in a few seconds."""
        self._stopping.set()
        spans = threading.Thread(target=self._provider.shutdown, name="spans export", daemon=True)
        spans.start()
        until = monotonic() + _ENDING
        for thread in (self._thread, spans):
            if thread.is_alive():
                thread.join(max(0.0, until - monotonic()))
        self._exporter.shutdown()

    def _run(self) -> None:
        seconds = float(os.environ.get(_INTERVAL, _MINUTE)) / 1000
        while not self._stopping.wait(seconds):
            self._export()
        self._export()

    def _export(self) -> None:
        try:
            self._exporter.export(self._data())
        except Exception as error:  # noqa: BLE001 - whatever a metric or the network has, the next time may be better
            _LOG.warning("metrics are not exported: %s", one_line(error))

    def _data(self) -> MetricsData:
        moment = time_ns()
        metrics = [_converted(family, self._started, moment) for family in self._families() if family.samples]
        scope = ScopeMetrics(InstrumentationScope("tilewise", version("tilewise")), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


class _OneAMinute(logging.Filter):
    """Lets an exporter, which tries again and again, complain once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        is_due = record.created >= self._next
        if is_due:
            self._next = record.created + _PAUSE
        return is_due


def _resource() -> Resource:
    """The service by its name and version, unless the environment has others."""
    found = Resource.create()
    ours = {SERVICE_VERSION: version("tilewise")}
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "tilewise"}))
    return Resource(ours).merge(found)


def _remote(parent: TraceParent) -> SpanContext:
    state = TraceState.from_header([parent.state]) if parent.state else None
    flags = TraceFlags(parent.flags & TraceFlags.SAMPLED)
    return SpanContext(
        int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags, trace_state=state
    )


def _converted(family: Metric, started: int, moment: int) -> OtlpMetric:
    """A family of Prometheus' as OTLP has it, under the name that it has in GET /metrics."""
    unit = next((unit for word, unit in _UNITS.items() if word in family.name.split("_")), "1")
    data: Any
    if family.type == "histogram":
        data = Histogram(_histograms(family, started, moment), AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        data = Sum(_numbers(family, started, moment), AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(_numbers(family, started, moment))
    name = family.name if family.type == "histogram" else family.samples[0].name
    return OtlpMetric(name, family.documentation, unit, data)


def _numbers(family: Metric, started: int, moment: int) -> Sequence[NumberDataPoint]:
    return [NumberDataPoint(dict(each.labels), started, moment, each.value) for each in family.samples]


def _histograms(family: Metric, started: int, moment: int) -> Sequence[HistogramDataPoint]:
    """Each labels' buckets, which Prometheus counts up to each bound and OTLP between them."""
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for each in family.samples:
        labels = {name: value for name, value in each.labels.items() if name != "le"}
        point = found.setdefault(tuple(labels.items()), {"labels": labels, "bounds": [], "counts": []})
        if each.name.endswith("_bucket"):
            point["bounds"].append(float(each.labels["le"]))
            point["counts"].append(int(each.value))
        else:
            point[each.name.rpartition("_")[2]] = each.value
    return [_histogram(point, started, moment) for point in found.values()]


def _histogram(point: dict[str, Any], started: int, moment: int) -> HistogramDataPoint:
    counts = point["counts"]
    each = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
    unknown = cast("float", None)  # the least and the most, which Prometheus does not keep
    finite = point["bounds"][:-1]
    return HistogramDataPoint(
        point["labels"], started, moment, int(point["count"]), point["sum"], each, finite, unknown, unknown
    )
