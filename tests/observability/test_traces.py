"""A service that sends traces and metrics to a real receiver: spans of a product and of a tune, and their parents."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.otlp_receiver import Received, SeenSpan, receiving
from tests.support.started_services import settled
from tests.support.waiting import until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
RAW = {"Content-Type": "application/octet-stream"}
TUNE = {"shapes": ["24x25x26"], "kernels": ["naive"], "budget": {"trials": 1, "seconds": 30}}


@dataclass(frozen=True)
class Traced:
    """A service, and what it has sent."""

    url: str
    received: Received

    def span(self, request_id: str) -> SeenSpan:
        """The span of a request, once it has come with those that ended before it."""
        found: list[SeenSpan] = []

        def came() -> bool:
            found[:] = [s for s in self.received.spans if s.attributes.get("tilewise.request_id") == request_id]
            return bool(found)

        until(came)
        return found[0]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with pytest.MonkeyPatch.context() as patch, receiving() as received:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{received.port}")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "300")
        with settled(tmp_path_factory.mktemp("traced"), otel="on") as running:
            yield Traced(running.url, received)


def product(service: Traced, m: int, request_id: str, **headers: str) -> httpx.Response:
    a, b = np.ones((m, 40), np.float32), np.ones((40, 50), np.float32)
    answer = httpx.post(
        f"{service.url}/matmul?m={m}&n=50&k=40&dtype=float32",
        content=a.tobytes() + b.tobytes(),
        headers=RAW | CALLER | {"X-Request-ID": request_id} | headers,
        timeout=60,
    )
    assert answer.is_success, answer.text
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("m", [30, 900])  # made on the event loop, and in a thread
def test_a_product_is_traced_through_its_phases_in_its_callers_trace(service: Traced, m: int) -> None:
    answer = product(service, m, f"product-{m}")
    span = service.span(f"product-{m}")
    assert (span.name, span.trace_id, span.parent_id) == ("POST /matmul", TRACE, SPAN)
    assert span.attributes["http.response.status_code"] == 200
    phases = {child.name: child for child in service.received.children(span)}
    assert {"receive", "queue", "h2d", "launch", "d2h", "send"} <= phases.keys()
    assert {child.trace_id for child in phases.values()} == {TRACE}
    order = [phases[name] for name in ("receive", "queue", "h2d", "launch", "d2h", "send")]
    assert [each.start for each in order] == sorted(each.start for each in order)
    assert all(each.start <= each.end for each in order)
    assert span.start <= order[0].start
    assert order[-1].end <= span.end
    told = dict(part.split(";dur=") for part in answer.headers["Server-Timing"].split(", "))
    took = (phases["launch"].end - phases["launch"].start) / 1e6
    assert took == pytest.approx(float(told["kernel"]), abs=0.002)  # the same figure, rounded


@pytest.mark.slow
def test_a_kernels_first_use_is_compiled_and_verified_inside_its_products_trace(service: Traced) -> None:
    body = np.ones((33 * 7 + 7 * 35,), np.float64).tobytes()
    url = f"{service.url}/matmul?m=33&n=35&k=7&dtype=float64&trans_a=true&kernel=tiled"
    answer = httpx.post(url, content=body, headers=RAW | {"X-Request-ID": "first-use"}, timeout=100)
    assert "build" in answer.headers["Server-Timing"]
    span = service.span("first-use")
    names = {child.name for child in service.received.children(span)}
    assert {"compile", "verify", "launch"} <= names
    assert span.parent_id == ""
    workers = {child.attributes.get("tilewise.worker") for child in service.received.children(span)}
    assert len(workers - {None}) == 1


@pytest.mark.slow
def test_a_tune_is_traced_from_its_request_to_its_trials_and_the_store(service: Traced) -> None:
    headers = CALLER | {"X-Request-ID": "tune", "Prefer": "wait=60"}
    answer = httpx.post(f"{service.url}/tune", json=TUNE, headers=headers, timeout=100)
    assert answer.json()["state"] == "succeeded", answer.text
    request = service.span("tune")
    until(lambda: any(each.name == "tune job" for each in service.received.spans))
    (job,) = (child for child in service.received.children(request) if child.name == "tune job")
    assert job.attributes["tilewise.job"] == answer.json()["id"]
    (shape,) = (child for child in service.received.children(job) if child.name == "tune shape")
    trials = [child for child in service.received.children(shape) if child.name == "trial"]
    assert {trial.attributes["tilewise.kernel"] for trial in trials} >= {"naive"}
    phases = {child.name for trial in trials for child in service.received.children(trial)}
    assert {"compile", "verify", "measure"} <= phases
    assert "store write" in {child.name for child in service.received.children(shape)}
    assert "store write" in {child.name for child in service.received.children(request)}
    assert {each.trace_id for each in service.received.below(request)} == {TRACE}


def test_what_its_caller_does_not_sample_is_not_sent(service: Traced) -> None:
    product(service, 31, "unsampled", traceparent=f"00-{TRACE}-{SPAN}-00")
    product(service, 31, "sampled")
    service.span("sampled")
    time.sleep(0.5)  # several exports
    assert not [s for s in service.received.spans if s.attributes.get("tilewise.request_id") == "unsampled"]


@pytest.mark.rotating
def test_metrics_are_those_of_get_metrics(service: Traced) -> None:
    product(service, 30, "for metrics")
    name = "tilewise_requests_total"
    until(lambda: any(point.as_double for point in _points(service, name) if _labels(point)["route"] == "/matmul"))
    shown = httpx.get(f"{service.url}/metrics", timeout=60).text
    until(lambda: {"tilewise_ready", "tilewise_request_seconds"} <= service.received.metrics.keys())
    metrics = service.received.metrics
    assert metrics[name].sum.is_monotonic
    assert metrics["tilewise_slab_size_bytes"].unit == "By"
    points = metrics["tilewise_request_seconds"].histogram.data_points
    (point,) = (each for each in points if _labels(each)["route"] == "/matmul")
    assert sum(point.bucket_counts) == point.count > 0
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    told = {line.split("{")[0].split(" ")[0] for line in shown.splitlines() if not line.startswith("#")}
    for sent, metric in metrics.items():
        assert (f"{sent}_bucket" if metric.HasField("histogram") else sent) in told
    assert service.received.resource["service.name"] == "tilewise"


def _points(service: Traced, name: str) -> list[Any]:
    metric = service.received.metrics.get(name)
    return [] if metric is None else list(metric.sum.data_points)


def _labels(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


@pytest.mark.slow
def test_nothing_of_opentelemetry_is_imported_where_it_is_off(tmp_path: Path) -> None:
    program = (
        "import sys; from app.cli import serve; from app.main import create_app; from app.settings import Settings;"
        "from starlette.testclient import TestClient\n"
        "with TestClient(create_app(Settings()), base_url='http://localhost') as client:\n"
        "    client.get('/health/live')\n"
        "    sys.exit(bool([name for name in sys.modules if name.startswith('opentelemetry.sdk')]))"
    )
    env = {"TILEWISE_DATA_DIR": str(tmp_path / "data"), "TILEWISE_DEVICES": "none", "PATH": "/usr/bin"}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_without_the_extra_the_refusal_names_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from app.cli import main; sys.argv = ['tilewise', 'serve', '--port', '0']; sys.exit(main())"
    )
    env = {"TILEWISE_DATA_DIR": str(tmp_path / "data"), "TILEWISE_DEVICES": "none", "PATH": "/usr/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=env | {"TILEWISE_OTEL": "on"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 1
    assert "pip install 'tilewise[otel]'" in ran.stderr
    assert "Traceback" not in ran.stderr
