"""Gauges: what is read of a GPU and of a processor, and why a figure is absent; here a CPU stands for the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.devices import host
from app.devices.backend import Vendor
from app.devices.compiler_pool import Compilers
from app.devices.fleet import Unit
from app.devices.gpu_health import GpuReading
from app.devices.lease import Lease, Priority
from app.devices.process import Worker
from app.services.health.cordons import Cordons
from app.services.health.gauges import GaugeReader
from app.services.health.gpus import GpuWatch
from app.store.database import Database, migrate
from kernels.device import Device
from tests.support.devices import child_functions
from tests.support.kernels.devices import H200, PROCESSOR

UUID = "GPU-1"


@pytest.fixture
def lease() -> Iterator[Lease]:
    one = Lease()
    yield one
    one.close()


def unit(device: Device, lease: Lease, products: Any = None) -> Unit:
    """A unit whose workers are not started: gauges ask none."""
    worker = products or Worker("products", child_functions.hold, ("state",), lease=lease)
    return Unit(device, Vendor("none"), lease, worker, worker, Compilers(Path()))


def test_a_gpu_s_figures_are_its_driver_s_last_reading(lease: Lease, tmp_path: Path) -> None:
    class Reader:
        def read(self, _: float) -> list[GpuReading]:
            return [
                GpuReading(
                    UUID, busy=0.9, sm_mhz=1980.0, watts=512.0, memory_used_bytes=2.0**33, throttled=("power cap",)
                )
            ]

    gpu = unit(replace(H200, uuid=UUID), lease)
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    watch = GpuWatch(Reader(), [gpu], Cordons([gpu], Database(url), tmp_path / "cordons.json"), lambda _: None)
    reader = GaugeReader([gpu], watch)
    (before,) = reader.read()
    assert (before.busy.value, before.busy.reason) == (None, "its driver has not been asked yet")
    watch.look(0)
    (now,) = reader.read()
    assert (now.busy.value, now.sm_mhz.value, now.watts.value, now.memory_used_bytes.value) == (
        0.9,
        1980.0,
        512.0,
        2**33,
    )
    assert now.throttled == ("power cap",)
    assert (now.celsius.value, now.celsius.reason) == (None, "NVIDIA's management library does not tell it of this GPU")
    watch.readings.clear()
    watch.warnings[gpu.device.id] = ("its driver does not tell of its health",)
    assert reader.read()[0].busy.reason == "its driver does not tell of its health"
    assert GaugeReader([gpu], None).read()[0].busy.reason == "NVIDIA's management library does not know this GPU"


def test_a_processor_s_figures_are_its_host_s(lease: Lease) -> None:
    processor = unit(replace(PROCESSOR, memory_bytes=2**60), lease)
    reader = GaugeReader([processor], None)
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        pass
    with lease.held(Priority.PRODUCT):
        ticket = lease.queue(Priority.PRODUCT)
        (now,) = reader.read()
        lease.leave(ticket)
    assert now.busy.value is not None
    assert 0.2 < now.busy.value <= 1  # one of two processors has just worked all the time
    assert now.memory_used_bytes.value is not None
    assert 2**60 - 2**50 < now.memory_used_bytes.value < 2**60
    assert now.waiting == 1
    assert now.watts.reason == now.celsius.reason == "it is read of GPUs alone"


def test_a_device_of_another_node_is_not_taken_for_this_host(lease: Lease) -> None:
    class Elsewhere:
        """Stands for a worker of another node: it is no process of this host."""

    (now,) = GaugeReader([unit(PROCESSOR, lease, Elsewhere())], None).read()
    assert {now.busy.value, now.memory_used_bytes.value} == {None}
    assert "another node" in (now.busy.reason or "")


@pytest.mark.parametrize("content", ["", "intr 1 2 3\n", "cpu 1 2\n", "cpu a b c d e f\n"])
def test_a_system_that_tells_no_times_has_no_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "stat"
    file.write_text(content, encoding="ascii")
    monkeypatch.setattr(host, "_STAT", file)
    assert host.ProcessorLoad().share() is None
    monkeypatch.setattr(host, "_CPUINFO", file)
    assert host.core_mhz() is None


def test_the_share_is_of_the_time_since_the_look_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, moment = tmp_path / "stat", iter([0.0, 1.0, 1.0, 1.1, 2.0, 2.0])
    monkeypatch.setattr(host, "_STAT", file)
    monkeypatch.setattr(host, "monotonic", lambda: next(moment))
    file.write_text("cpu 100 0 0 100 0 0 0 0 50 0\ncpu0 1\n", encoding="ascii")
    load = host.ProcessorLoad()
    file.write_text("cpu 130 0 0 155 15 0 0 0 90 0\n", encoding="ascii")
    assert load.share() == pytest.approx(0.3)
    file.write_text("cpu 230 0 0 155 15 0 0 0 90 0\n", encoding="ascii")
    assert load.share() == pytest.approx(0.3)  # a tenth of a second later: as of the last look
    assert load.share() == 1.0
