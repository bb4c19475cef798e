"""SIGTERM: what was accepted is finished, what comes after it is refused, and a second one ends all at once."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started, started
from tests.support.waiting import until

SIDE = 1300
SLOW = f"/matmul?m={SIDE}&n={SIDE}&k={SIDE}&kernel=naive&trans_a=true&trans_b=true"
RAW = {"Content-Type": "application/octet-stream"}
ONES = np.ones(2 * SIDE * SIDE, np.float32).tobytes()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def sent(service: Started, pool: ThreadPoolExecutor, count: int, **headers: str) -> list[Future[httpx.Response]]:
    """Slow products, which have all been received: so many wait, or have been made."""

    def post() -> httpx.Response:
        return httpx.post(service.url + SLOW, content=ONES, headers=RAW | headers, timeout=60)

    made = [pool.submit(post) for _ in range(count)]
    until(lambda: waiting(service) + sum(one.done() for one in made) >= count, 60, each=0.01)
    return made


def waiting(service: Started) -> int:
    text = httpx.get(service.url + "/metrics").text
    found = [line for line in text.splitlines() if line.startswith("tilewise_products_waiting ")]
    return int(float(found[0].split()[1]))


def ready(service: Started) -> None:
    until(lambda: httpx.get(service.url + "/health/ready").status_code == 200, 90, each=0.1)


@pytest.mark.slow
def test_what_was_accepted_is_finished_and_what_comes_later_refused(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with started(tmp_path, devices="opencl", max_batch="1", drain_seconds="60") as service:
        ready(service)
        made = sent(service, pool, 4)
        job = httpx.post(service.url + SLOW, content=ONES, headers=RAW | {"Prefer": "respond-async"}, timeout=60)
        assert job.status_code == 202
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert not all(one.done() for one in made), "the products are too quick to say anything"
        assert httpx.get(service.url + "/health/ready").status_code == 503
        late = httpx.post(service.url + SLOW, content=ONES, headers=RAW)
        assert (late.status_code, late.json()["code"], late.headers["retry-after"]) == (503, "closing", "1")
        for one in made:
            assert one.result().status_code == 200
            assert set(np.frombuffer(one.result().content, np.float32)) == {SIDE}
        assert service.process.wait(10) in (0, -signal.SIGTERM)
        assert "Traceback" not in service.log.read_text()
    with sqlite3.connect(tmp_path / "tilewise.db") as database:
        assert database.execute("SELECT state FROM jobs").fetchall() == [("succeeded",)]


@pytest.mark.slow
def test_what_becomes_a_job_while_the_service_ends_is_made(tmp_path: Path) -> None:
    """Its request was in hand at the signal, and its job was not there yet."""
    with started(tmp_path, devices="opencl", drain_seconds="60") as service:
        ready(service)
        where = httpx.URL(service.url)
        lines = (f"POST {SLOW} HTTP/1.1", "Host: localhost", "Content-Type: application/octet-stream")
        head = "\r\n".join((*lines, f"Content-Length: {len(ONES)}", "Prefer: respond-async", "", ""))
        with socket.create_connection((where.host, where.port or 0), 60) as late:
            late.sendall(head.encode() + ONES[: len(ONES) // 2])
            time.sleep(0.5)
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            late.sendall(ONES[len(ONES) // 2 :])
            assert late.recv(2**16).startswith(b"HTTP/1.1 202 ")
        assert service.process.wait(60) in (0, -signal.SIGTERM)
    with sqlite3.connect(tmp_path / "tilewise.db") as database:
        assert database.execute("SELECT state FROM jobs").fetchall() == [("succeeded",)]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["60", "0"])
def test_what_cannot_be_finished_is_told_that_the_service_closes(
    tmp_path: Path, pool: ThreadPoolExecutor, seconds: str
) -> None:
    with started(tmp_path, devices="opencl", max_batch="1", drain_seconds=seconds) as service:
        ready(service)
        made = sent(service, pool, 6)
        begun = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        if seconds == "60":
            time.sleep(0.5)
            service.process.send_signal(signal.SIGTERM)
        for one in made:
            answer = one.result()
            if answer.status_code != 200:
                assert (answer.status_code, answer.json()["code"]) == (503, "closing")
                assert answer.headers["retry-after"] == "1"
        assert service.process.wait(15) in (0, -signal.SIGTERM)
        assert time.monotonic() - begun < 15


@pytest.mark.slow
def test_a_connection_that_has_asked_nothing_yet_hears_of_the_end(tmp_path: Path) -> None:
    """What it asks may be on its way."""
    with started(tmp_path, devices="none") as service:
        where = httpx.URL(service.url)
        with socket.create_connection((where.host, where.port or 0), 30) as fresh:
            assert httpx.get(service.url + "/health/live").status_code == 200  # the one before is accepted
            service.process.send_signal(signal.SIGTERM)
            head, _, body = fresh.recv(2**16).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["code"] == "closing"
        assert service.process.wait(15) in (0, -signal.SIGTERM)
