"""Functions that tests have a compiler's process run."""

from __future__ import annotations

from pathlib import Path

from app.devices import worker_entry


def compiler_of_no_architecture(cache_dir: Path) -> None:
    """Set up a compiler whose NVRTC makes nothing for the architecture with which it is loaded ahead."""
    worker_entry.import_cuda(cache_dir)
    from app.devices.cuda import nvrtc  # noqa: PLC0415 - only this process may

    nvrtc.LOADED_FOR = "sm_1"  # type: ignore[misc]
    worker_entry.compiler(cache_dir)
