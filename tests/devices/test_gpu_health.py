"""What follows from a GPU's readings, and how they are read through NVIDIA's management library."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from app.devices.cuda.nvml_health import NvmlHealth
from app.devices.gpu_health import XIDS, GpuReading, judge

UUID, OTHER = "GPU-1", "GPU-2"


@pytest.mark.parametrize(
    ("xids", "action"),
    [((), "note"), ((63,), "note"), ((31,), "check"), ((94,), "replace"), ((79,), "cordon"), ((31, 94, 48), "cordon")],
)
def test_the_worst_of_the_xids_is_what_is_done(xids: tuple[int, ...], action: str) -> None:
    verdict = judge(GpuReading(UUID, xids))
    assert verdict.action == action
    assert all(
        f"Xid {number}: " in f"{verdict.reason} {verdict.warnings}" for number in xids if XIDS[number].action == action
    )


def test_xid_that_nobody_knows_is_noted() -> None:
    verdict = judge(GpuReading(UUID, (9999,)))
    assert (verdict.action, verdict.warnings) == ("note", ("Xid 9999: an error that this version does not know",))


def test_new_uncorrected_errors_replace_the_processes_and_old_ones_do_not() -> None:
    before = GpuReading(UUID, uncorrected=3)
    assert judge(before).action == "note"
    assert judge(before, before).action == "note"
    verdict = judge(GpuReading(UUID, uncorrected=5), before)
    assert (verdict.action, verdict.reason) == ("replace", "2 uncorrected errors of memory")


@pytest.mark.parametrize("reading", [GpuReading(UUID, is_lost=True), GpuReading(UUID, remap_failed=True)])
def test_gpu_that_is_lost_or_out_of_spare_rows_is_cordoned(reading: GpuReading) -> None:
    assert judge(reading).action == "cordon"


def test_heat_slowdowns_and_pending_rows_are_warnings() -> None:
    reading = GpuReading(
        UUID, remap_is_pending=True, celsius=88, slowdown_celsius=90, throttled=("hardware thermal", "power cap")
    )
    assert judge(reading).action == "note"
    assert judge(reading).warnings == (
        "it is slowed down: hardware thermal",
        "a row of memory is remapped at the next reset",
        "it is at 88 degrees, and slows down at 90",
    )


class FakeLibrary:
    """NVML's functions that are read, over two GPUs; `events` are those that come, `lost` handles answer 15."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.lost: set[int] = set()
        self.registered: list[int] = []
        self.known = {UUID.encode(): 0x10, OTHER.encode(): 0x20}

    def nvmlEventSetCreate(self, where: Any) -> int:  # noqa: N802 - NVML's own name, as those below
        where._obj.value = 0x99
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, where: Any) -> int:  # noqa: N802
        where._obj.value = self.known.get(uuid)
        return 0 if uuid in self.known else 6

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        assert (kinds.value, events.value) == (0x8, 0x99)
        self.registered.append(handle.value)
        return 0

    def nvmlEventSetWait_v2(self, events: Any, where: Any, milliseconds: Any) -> int:  # noqa: N802
        assert events.value == 0x99
        assert milliseconds.value <= 1000
        if not self.events:
            return 10
        where._obj.device, where._obj.eventData = self.events.pop(0)
        where._obj.eventType = 0x8
        return 0

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, where: Any) -> int:  # noqa: N802
        where._obj.value = 40 + handle.value
        return 15 if handle.value in self.lost else sensor.value

    def nvmlDeviceGetTemperatureThreshold(self, handle: Any, kind: Any, where: Any) -> int:  # noqa: N802
        where._obj.value = 90 + kind.value
        return 15 if handle.value in self.lost else 0

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, where: Any) -> int:  # noqa: N802
        del handle
        where._obj.value = 2**40 + kind.value
        return int(counter.value)

    def nvmlDeviceGetRemappedRows(self, handle: Any, *where: Any) -> int:  # noqa: N802
        for each, value in zip(where, (1, 2, 0, 1), strict=True):
            each._obj.value = value
        return 3 if handle.value == 0x20 else 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, where: Any) -> int:  # noqa: N802
        where._obj.value = 1000 * handle.value
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, where: Any) -> int:  # noqa: N802
        where[0], where[1] = handle.value, 3
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, where: Any) -> int:  # noqa: N802
        where._obj.value = {1: 1980, 2: 3201}[kind.value]
        return 3 if handle.value == 0x20 and kind.value == 2 else 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, where: Any) -> int:  # noqa: N802
        where[0], where[1], where[2] = 2**40, 2**39, 2**38 + handle.value
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, where: Any) -> int:  # noqa: N802
        where._obj.value = 0x48 if handle.value == 0x10 else 0
        return 0


def test_readings_have_what_the_library_says_and_events_reach_their_gpu() -> None:
    library = FakeLibrary()
    library.events = [(0x20, 79), (0x10, 31), (0x10, 94)]
    health = NvmlHealth(library, [UUID, OTHER])
    first, second = health.read(1.0)
    assert library.registered == [0x10, 0x20]
    assert first == GpuReading(
        UUID,
        (31, 94),
        uncorrected=2**40 + 1,
        corrected=2**40,
        remapped_rows=3,
        remap_failed=True,
        celsius=56.0,
        slowdown_celsius=91.0,
        watts=16.0,
        throttled=("hardware slowdown", "hardware thermal"),
        busy=0.16,
        sm_mhz=1980.0,
        memory_mhz=3201.0,
        memory_used_bytes=2.0**38 + 0x10,
    )
    assert (second.busy, second.sm_mhz, second.memory_mhz) == (0.32, 1980.0, None)
    assert (second.xids, second.remapped_rows, second.remap_failed) == ((79,), None, False)
    assert [reading.xids for reading in health.read(0.01)] == [(), ()]


def test_gpu_that_has_fallen_off_the_bus_is_lost() -> None:
    library = FakeLibrary()
    health = NvmlHealth(library, [UUID])
    library.lost = {0x10}
    (reading,) = health.read(0.0)
    assert reading.is_lost
    assert reading.celsius is None


def test_functions_that_an_old_library_lacks_are_figures_that_it_does_not_tell() -> None:
    class Old(FakeLibrary):
        def __getattribute__(self, name: str) -> Any:
            if name in {"nvmlDeviceGetRemappedRows", "nvmlEventSetCreate"}:
                raise AttributeError(name)
            return super().__getattribute__(name)

    (reading,) = NvmlHealth(Old(), [UUID]).read(0.0)
    assert (reading.remapped_rows, reading.xids, reading.celsius) == (None, (), 56.0)


def test_gpu_that_appears_later_is_read_then() -> None:
    library = FakeLibrary()
    library.known.pop(UUID.encode())
    health = NvmlHealth(library, [UUID])
    assert health.read(0.0) == [GpuReading(UUID)]
    library.known[UUID.encode()] = 0x10
    assert health.read(0.0)[0].celsius == 56.0


def test_structure_of_events_is_the_librarys() -> None:
    from app.devices.cuda import nvml_health  # noqa: PLC0415 - its own structure

    assert ctypes.sizeof(nvml_health.EventData) == 32
