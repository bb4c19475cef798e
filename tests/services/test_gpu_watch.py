"""What a GPU's driver reports has its device cordoned or its processes replaced; here a CPU stands for the GPU."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path

import pytest

from app.devices.backend import Vendor
from app.devices.compiler_pool import Compilers
from app.devices.fleet import Unit
from app.devices.gpu_health import GpuReading
from app.devices.gpu_reader import GpuHealthProcess
from app.devices.lease import Lease
from app.devices.process import Worker
from app.errors import ChildDied, DeviceCordoned, DeviceError
from app.services.health import gpus
from app.services.health.cordons import HEALTH, OPERATOR, Cordon, Cordons
from app.services.health.gpus import GpuWatch
from app.store.database import Database, migrate
from tests.support.devices import child_functions
from tests.support.kernels.devices import H200
from tests.support.waiting import until

CDLL_FOUND = find_library("nvidia-ml") is not None
UUID = "GPU-1"


class ScriptedReader:
    """Gives readings in turn, the last one for ever, or fails."""

    def __init__(self, *readings: GpuReading | DeviceError) -> None:
        self.readings = list(readings)

    def read(self, _: float) -> list[GpuReading]:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, DeviceError):
            raise reading
        return [reading]


@pytest.fixture
def unit() -> Iterator[Unit]:
    """A unit whose workers are real processes; its device says that it is a GPU."""
    lease, compilers = Lease(), Compilers(Path())
    products, trials = (Worker(role, child_functions.hold, ("state",), lease=lease) for role in ("products", "trials"))
    for worker in (products, trials):
        worker.start()
    yield Unit(replace(H200, uuid=UUID), Vendor("none"), lease, products, trials, compilers)
    for worker in (products, trials):
        worker.close()
    compilers.close()
    lease.close()


def stored(folder: Path) -> Database:
    """A store in a folder, which the process closes with its end."""
    url = f"sqlite:///{folder / 'tilewise.db'}"
    migrate(url)
    return Database(url)


def watch(unit: Unit, folder: Path, *readings: GpuReading | DeviceError) -> tuple[GpuWatch, Cordons, list[str]]:
    cordons, checked = Cordons([unit], stored(folder), folder / "cordons.json"), list[str]()
    return GpuWatch(ScriptedReader(*readings), [unit], cordons, checked.append), cordons, checked


@pytest.mark.rotating
def test_xid_that_condemns_cordons_the_device_and_ends_what_runs(unit: Unit, tmp_path: Path) -> None:
    watching, cordons, _ = watch(unit, tmp_path, GpuReading(UUID, (79,)))
    products = unit.products
    assert isinstance(products, Worker)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(products.call, child_functions.sleep, 60)
        until(lambda: products.calls.is_held, 10)
        time.sleep(0.2)
        watching.look(0)
        with pytest.raises(ChildDied, match="killed since Xid 79: the GPU has fallen off the bus") as failure:
            running.result(10)
    assert failure.value.facts["outside"], "no config is to blame"
    for worker in (unit.products, unit.trials):
        with pytest.raises(DeviceCordoned, match="fallen off the bus"):
            worker.call(child_functions.echo, 1)
    cordon = cordons.of(unit.device)
    assert cordon is not None
    assert cordon.by == HEALTH
    assert Cordons([unit], stored(tmp_path), tmp_path / "cordons.json").of(unit.device) == cordon
    cordons.uncordon(unit)
    assert unit.products.call(child_functions.echo, 1) == ("state", 1)
    assert Cordons([unit], stored(tmp_path), tmp_path / "cordons.json").of(unit.device) is None


def test_recoverable_xid_replaces_the_processes(unit: Unit, tmp_path: Path) -> None:
    watching, cordons, checked = watch(unit, tmp_path, GpuReading(UUID, (94,)))
    before = unit.products.pid, unit.trials.pid
    watching.look(0)
    after = tuple(worker.call(child_functions.pid) for worker in (unit.products, unit.trials))
    assert not set(before) & set(after)
    assert cordons.of(unit.device) is None
    assert not checked
    assert watching.xids == {(unit.device.id, 94): 1}


def test_fault_of_one_processs_work_has_the_device_checked_and_nothing_killed(unit: Unit, tmp_path: Path) -> None:
    watching, _, checked = watch(unit, tmp_path, GpuReading(UUID, (31,)))
    before = unit.products.pid, unit.trials.pid
    watching.look(0)
    assert checked == [unit.device.id]
    assert (unit.products.pid, unit.trials.pid) == before


def test_driver_that_does_not_answer_is_a_warning_and_asked_again(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_AGAIN", (0.01, 0.01))
    watching, _, _ = watch(unit, tmp_path, DeviceError("it hangs"), GpuReading(UUID, celsius=40.0))
    stopping = threading.Event()
    thread = threading.Thread(target=watching.run, args=(stopping,))
    told = set[tuple[str, ...]]()

    def has_read() -> bool:
        told.update(watching.warnings.values())
        return bool(watching.readings)

    thread.start()
    try:
        until(has_read, each=0.001)
    finally:
        stopping.set()
        thread.join()
    assert told <= {("its driver does not tell of its health",), ()}
    assert watching.warnings == {unit.device.id: ()}


def test_an_operators_cordon_keeps_its_reason(unit: Unit, tmp_path: Path) -> None:
    watching, cordons, _ = watch(unit, tmp_path, GpuReading(UUID, (79,)))
    first = cordons.cordon(unit, "it is moved", OPERATOR)
    watching.look(0)
    assert cordons.of(unit.device) == first


def test_cordons_of_an_old_file_are_taken_over_once(unit: Unit, tmp_path: Path) -> None:
    file = tmp_path / "cordons.json"
    since = "2026-11-23T10:00:00+00:00"
    file.write_text(json.dumps({UUID: {"reason": "a fan", "by": OPERATOR, "since": since}}))
    with closing(stored(tmp_path)) as database:
        cordons = Cordons([unit], database, file)
        assert cordons.of(unit.device) == Cordon("a fan", OPERATOR, since)
        assert not unit.takes_products
        cordons.uncordon(unit)
        assert not file.exists()
        assert Cordons([unit], database, file).of(unit.device) is None


def test_cordons_that_cannot_be_read_or_written_are_told_of_and_nothing_fails(
    unit: Unit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cordons.json"
    file.write_text('{"GPU-1": []}')
    database = stored(tmp_path)
    cordons = Cordons([unit], database, file)
    assert cordons.of(unit.device) is None
    assert file.exists()
    database.close()
    cordons.cordon(unit, "it is moved", OPERATOR)
    assert not unit.takes_products
    assert ["cannot be read" in text or "not stored" in text for text in caplog.messages].count(True) == 2


@pytest.mark.skipif(CDLL_FOUND, reason="NVIDIA's management library is there")
def test_watching_process_without_a_driver_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    reader = GpuHealthProcess([UUID], tmp_path)
    try:
        with pytest.raises(DeviceError):
            reader.read(0.0)
    finally:
        reader.close()
