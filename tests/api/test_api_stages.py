"""A service from its start to its end, and one that has no device."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from app.cli.spawn import Started, started
from tests.support.api.http_client import calling
from tests.support.waiting import until


@pytest.mark.slow
def test_a_service_without_a_device_says_so_wherever_one_is_needed(bare: str) -> None:
    shape = {"m": 8, "n": 8, "k": 8}
    with calling(bare) as client:
        answers = [
            client.get("/best-config", params=shape),
            client.get("/analysis", params=shape | {"tile": 8}),
            client.post("/matmul", json={"a": [[1]], "b": [[1]]}),
            client.post("/tune", json={"shapes": [shape]}),
        ]
        unready = client.get("/health/ready")
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "no_device"), answer.text
        assert answer.headers["retry-after"]
    assert (unready.status_code, unready.json()["code"]) == (503, "not_ready")


@pytest.mark.slow
def test_a_service_without_a_device_still_shows_what_it_has(bare: str) -> None:
    static = ("/", "/docs", "/devices", "/kernels", "/kernels/tiled/source", "/jobs", "/trials", "/metrics")
    with calling(bare) as client:
        for path in (*static, "/health/live"):
            assert client.get(path).status_code == 200, path


def unready_then_ready(url: str) -> None:
    told: list[str] = []
    with calling(url) as client:

        def is_ready() -> bool:
            answer = client.get("/health/ready")
            told.append(answer.text)
            if answer.status_code == 200:
                return True
            assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
            assert answer.headers["retry-after"]
            return False

        until(is_ready, 90, each=0.1, meanwhile=lambda: told[-1])


def stopped_while_followed(running: Started) -> None:
    shapes = [{"m": 200, "n": 200, "k": 200 + i} for i in range(8)]
    job = httpx.post(f"{running.url}/tune", json={"shapes": shapes}).json()
    with httpx.stream("GET", f"{running.url}/jobs/{job['id']}/events", timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        assert not any(line == "event: end" for line in lines)
    running.process.wait(10)


@pytest.mark.slow
def test_service_is_ready_once_verified_and_ends_streams_at_stop(tmp_path: Path) -> None:
    with started(tmp_path, devices="opencl") as running:
        unready_then_ready(running.url)
        stopped_while_followed(running)
    assert "Traceback" not in running.log.read_text()
