"""Readiness is a function of now: children, the store, cordons and verification products, each seen while it lasts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.process import PendingCall
from app.devices.slab import SlabRegion
from app.errors import DeviceCordoned
from app.services.health import host, status, verification
from app.services.health.status import told
from app.services.service import Service
from kernels.problem import Problem
from tests.support.services.running_service import Client, product, readiness_once, settled, started
from tests.support.waiting import until

PROBLEM = Problem(256, 256, 256)  # of the class that is verified at the start


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Client, Service]]:
    with started(folder) as (client, service):
        readiness_once(client, settled)
        product(service, PROBLEM)
        yield client, service


@dataclass(frozen=True)
class Watched:
    """A service that looks at its health often, and the folder of its data: each test leaves it as it was."""

    client: Client
    service: Service
    folder: Path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PROBE", "_FAILING"):
            patch.setattr(host, name, 0.1)
        patch.setattr(status, "_LOOK", 0.05)
        with serving(folder) as (client, service):
            yield Watched(client, service, folder)


def stop_and_time_a_product(client: Client, service: Service) -> tuple[float, set[int]]:
    """Stop the serving child: seconds until a product is made again, and what readiness answered meanwhile."""
    answers, made = set[int](), threading.Event()

    def ask() -> None:
        while not made.is_set():
            answers.add(client.get("/health/ready").status_code)
            time.sleep(0.05)

    asking = threading.Thread(target=ask)
    os.kill(service.fleet.unit().products.pid or 0, signal.SIGSTOP)
    began = time.monotonic()
    asking.start()
    product(service, PROBLEM)
    took = time.monotonic() - began
    made.set()
    asking.join()
    return took, answers


@pytest.mark.slow
def test_product_of_a_stopped_child_is_made_by_the_next_and_readiness_tells(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, service):
        took, answers = stop_and_time_a_product(client, service)
        assert took < 60, "on a busy host a new process takes longer than finding that one hangs"
        assert 503 in answers
        until(lambda: client.get("/health/ready").status_code == 200, 60)
        assert not service.quarantine.entries(service.fleet.unit().device), "no config is to blame"


@pytest.mark.timing
def test_a_child_stopped_five_times_serves_again_each_time(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, service):
        for _ in range(5):
            took, answers = stop_and_time_a_product(client, service)
            assert took < 5
            assert 503 in answers


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["deleted", "overwritten", "replaced"])
def test_a_store_that_is_gone_is_seen_and_products_go_on(watched: Watched, fault: str) -> None:
    client = watched.client
    (file,) = (path for path in watched.folder.rglob("*.db") if path.is_file())
    kept = file.with_name("kept")
    file.rename(kept)
    if fault != "deleted":
        file.write_bytes(b"garbage " * 512 if fault == "overwritten" else kept.read_bytes())
    answer = dict[str, Any]()

    def is_failed() -> bool:
        answer.update(client.get("/health").json())
        return bool(answer["store"] == "failed")

    until(is_failed)
    assert answer["status"] == "degraded"
    assert any(reason.startswith("store_failed: ") for reason in answer["reasons"])
    assert client.get("/health/ready").status_code == 200
    product(watched.service, PROBLEM)
    kept.replace(file)
    until(lambda: client.get("/health").json()["store"] == "ok")
    assert client.get("/health/ready").json()["status"] == "ready"


@pytest.mark.slow
def test_changes_of_health_are_logged_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "app.services.health.status")
    unit, cordons = watched.service.fleet.unit(), watched.service.health.cordons
    until(lambda: watched.client.get("/health").json()["store"] == "ok")
    time.sleep(0.5)  # what changed before is logged by then
    caplog.clear()
    cordons.cordon(unit, "a fan is broken", "operator")
    time.sleep(0.5)
    cordons.uncordon(unit)
    until(lambda: any(record.getMessage() == "opencl:0 is ok" for record in caplog.records))
    told = [record.getMessage() for record in caplog.records if record.name == "app.services.health.status"]
    assert told[0] == "opencl:0 is cordoned: it is cordoned by operator: a fan is broken"
    assert len(told) == len(set(told))


@pytest.mark.slow
def test_a_cordoned_device_refuses_products_and_tunes_over_restarts(tmp_path: Path) -> None:
    tune = {"shapes": [{"m": 64, "n": 64, "k": 64}]}
    with serving(tmp_path) as (client, service):
        service.health.cordons.cordon(service.fleet.unit(), "a fan is broken", "operator")
        with pytest.raises(DeviceCordoned, match="a fan is broken"):
            product(service, PROBLEM)
        assert client.post("/tune", tune).json()["code"] == "device_cordoned"
        assert client.get("/health/ready").status_code == 503
    with started(tmp_path) as (client, service):
        assert client.get("/health").json()["devices"][0]["state"] == "cordoned"
        with pytest.raises(DeviceCordoned):
            product(service, PROBLEM)
        service.health.cordons.uncordon(service.fleet.unit())
        readiness_once(client, settled)
        product(service, PROBLEM)


@pytest.mark.slow
def test_idle_device_is_verified(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched.service.health.verification["opencl:0"]
    before = one.total
    monkeypatch.setattr(verification, "_EVERY", 0.1)
    until(lambda: one.total > before + 2)
    assert one.failure is None
    (device,) = watched.client.get("/health").json()["devices"]
    assert device["served"] < 5


@pytest.mark.slow
def test_two_wrong_verification_products_cordon_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as (client, service):
        unit = service.fleet.unit()
        begin = unit.products.begin

        def corrupting(function: Any, request: Any, **options: Any) -> PendingCall[Any] | None:
            """Flip a bit of C, as a device does whose memory is broken."""
            pending = begin(function, request, **options)

            def finish(ended: Callable[[], Any]) -> Any:
                result = ended()
                c = SlabRegion(request.c, request.problem.c_bytes)
                np.frombuffer(service.fleet.slab.view(c), np.uint32)[77] ^= 1 << 20
                return result

            return pending and pending.then(finish)

        monkeypatch.setattr(unit.products, "begin", corrupting)
        monkeypatch.setattr(verification, "_EVERY", 0.1)
        until(lambda: service.health.cordons.of(unit.device) is not None)
        (device,) = client.get("/health").json()["devices"]
        assert device["cordon"]["by"] == "health"
        assert "verification products" in device["cordon"]["reason"]
        assert client.get("/health/ready").status_code == 503


def test_reasons_that_callers_are_told_have_one_line_and_no_paths() -> None:
    reason = "opencl:0 failed during verify: /home/me/cache/ab.so: no\nTraceback (most recent call last):\n  File"
    assert told(reason) == "opencl:0 failed during verify: (a file): no"
    assert len(told("x" * 10_000)) == 300
