"""Reads the health of GPUs in a process of its own, which holds no device: a driver that hangs keeps nobody waiting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.devices import worker_entry
from app.devices.gpu_health import GpuReading
from app.devices.process import Worker
from app.devices.sandbox import Sandbox

_PATIENCE: Final = 10.0  # seconds that a look may take beyond the time that it waits


class GpuHealthProcess:
    """A GpuReader in a child process, which is started by the first look; raises DeviceError where that fails."""

    def __init__(self, uuids: Sequence[str], cache_dir: Path, sandbox: Sandbox | None = None) -> None:
        self._worker = Worker("GPU health", worker_entry.gpu_health, (tuple(uuids), cache_dir), sandbox=sandbox)

    def read(self, seconds: float) -> list[GpuReading]:
        """Wait for events for at most so long, and read every GPU; raises DeviceError, Closing."""
        readings: list[GpuReading] = self._worker.call(worker_entry.read_gpus, seconds, deadline=seconds + _PATIENCE)
        return readings

    def close(self) -> None:
        """End the process."""
        self._worker.close()
