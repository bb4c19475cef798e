"""A service from its start to its end, and one that has no device."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.cli.service import Started, started


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started(tmp_path_factory.mktemp("bare"), devices="none") as running:
        yield running.url


def test_a_service_without_a_device_says_so_wherever_one_is_needed(bare: str) -> None:
    shape = {"m": 8, "n": 8, "k": 8}
    answers = [
        httpx.get(f"{bare}/best-config", params=shape),
        httpx.get(f"{bare}/analysis", params=shape | {"tile": 8}),
        httpx.post(f"{bare}/matmul", json={"a": [[1]], "b": [[1]]}),
        httpx.post(f"{bare}/tune", json={"shapes": [shape]}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "no_device"), answer.text
        assert answer.headers["retry-after"]
    unready = httpx.get(f"{bare}/health/ready")
    assert (unready.status_code, unready.json()["code"]) == (503, "not_ready")


def test_a_service_without_a_device_still_shows_what_it_has(bare: str) -> None:
    for path in ("/", "/docs", "/devices", "/kernels", "/kernels/tiled/source", "/jobs", "/trials", "/metrics"):
        assert httpx.get(bare + path).status_code == 200, path
    assert httpx.get(f"{bare}/health/live").status_code == 200


def unready_then_ready(url: str) -> None:
    until = time.monotonic() + 90
    while (answer := httpx.get(f"{url}/health/ready")).status_code != 200:
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert answer.headers["retry-after"]
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)


def stopped_while_followed(running: Started) -> None:
    shapes = [{"m": 200, "n": 200, "k": 200 + i} for i in range(8)]
    job = httpx.post(f"{running.url}/tune", json={"shapes": shapes}).json()
    with httpx.stream("GET", f"{running.url}/jobs/{job['id']}/events", timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        assert not any(line == "event: end" for line in lines)
    running.process.wait(10)


def test_a_service_is_ready_once_it_has_verified_and_ends_its_streams_when_it_is_stopped(tmp_path: Path) -> None:
    with started(tmp_path, devices="opencl") as running:
        unready_then_ready(running.url)
        stopped_while_followed(running)
    assert "Traceback" not in running.log.read_text()
