"""What devices do now: how busy they are, their clocks, heat and memory; a figure that is absent says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.devices import host
from app.devices.fleet import Unit
from app.devices.gpu_health import GpuReading
from app.devices.process import Worker
from app.services.health.gpus import GpuWatch

_ELSEWHERE: Final = "it is on another node, of which this is not read"
_SILENT: Final = "NVIDIA's management library does not tell it of this GPU"
_UNREAD: Final = "its driver has not been asked yet"
_UNKNOWN: Final = "NVIDIA's management library does not know this GPU"
_PROCESSOR: Final = "it is read of GPUs alone"
_NO_SHARE: Final = "this system does not tell how busy its processors are"
_FIGURES: Final = ("busy", "sm_mhz", "memory_mhz", "watts", "celsius", "memory_used_bytes")
_NO_CLOCK: Final = "this system does not tell the clocks of its processors"


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure, or the reason why there is none."""

    value: float | None
    reason: str | None = None

    @classmethod
    def of(cls, value: float | None, reason: str) -> Gauge:
        """What was read, `reason` being why it may be None."""
        return cls(value, reason if value is None else None)


@dataclass(frozen=True, slots=True)
class DeviceGauges:
    """One device now: `busy` from 0 to 1, clocks in MHz, power in watts, degrees Celsius, bytes.

    A GPU's figures are of its driver's last reading, about a second old, and of everybody who uses it. A processor's
    are those of this host: its share of the time since it was read last, the mean clock of its cores.
    """

    device: str
    busy: Gauge
    sm_mhz: Gauge
    memory_mhz: Gauge
    watts: Gauge
    celsius: Gauge
    memory_used_bytes: Gauge
    memory_bytes: int
    waiting: int
    throttled: tuple[str, ...] = ()


class GaugeReader:
    """Reads the gauges of some devices; `watch` has the GPUs' readings, None without NVML."""

    def __init__(self, units: Sequence[Unit], watch: GpuWatch | None) -> None:
        self._units, self._watch = tuple(units), watch
        self._load = host.ProcessorLoad()

    def read(self) -> list[DeviceGauges]:
        """Each device as it is; asks no device, and reads files of the system."""
        return [self._of(unit) for unit in self._units]

    def _of(self, unit: Unit) -> DeviceGauges:
        if not isinstance(unit.products, Worker):
            return _gauges(unit, _ELSEWHERE)
        if unit.device.platform == "cuda":
            return self._of_gpu(unit)
        used = unit.device.memory_bytes - host.available_bytes()
        return _gauges(
            unit,
            _PROCESSOR,
            busy=Gauge.of(self._load.share(), _NO_SHARE),
            sm_mhz=Gauge.of(host.core_mhz(), _NO_CLOCK),
            memory_used_bytes=Gauge(float(max(0, used))),
        )

    def _of_gpu(self, unit: Unit) -> DeviceGauges:
        if self._watch is None:
            return _gauges(unit, _UNKNOWN)
        device = unit.device.id
        reading = self._watch.readings.get(device)
        if reading is None:
            return _gauges(unit, next(iter(self._watch.warnings.get(device, ())), _UNREAD))
        return _read(unit, reading)


def _gauges(unit: Unit, reason: str, throttled: tuple[str, ...] = (), **known: Gauge) -> DeviceGauges:
    """Every figure absent for a reason but those that are known."""
    absent = Gauge(None, reason)
    return DeviceGauges(
        unit.device.id,
        busy=known.get("busy", absent),
        sm_mhz=known.get("sm_mhz", absent),
        memory_mhz=known.get("memory_mhz", absent),
        watts=known.get("watts", absent),
        celsius=known.get("celsius", absent),
        memory_used_bytes=known.get("memory_used_bytes", absent),
        memory_bytes=unit.device.memory_bytes,
        waiting=unit.lease.waiting,
        throttled=throttled,
    )


def _read(unit: Unit, reading: GpuReading) -> DeviceGauges:
    figures = {name: Gauge.of(getattr(reading, name), _SILENT) for name in _FIGURES}
    return _gauges(unit, _SILENT, reading.throttled, **figures)
