"""Remembers the devices opened last, for commands that need to know them without opening them.

They are valid until one of their sources changes: the setting, the CPU and its memory, the NVIDIA driver and its
GPUs, the libraries, their settings, and the code that reads the properties. The sources name the file, so that
services of different settings may share a cache.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from kernels.device import Device, Limits

_KEPT: Final = 8  # files; those of sources that are gone are the oldest
_LIBRARIES: Final = ("pyopencl", "pocl-binary-distribution", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc-cu12")
_SETTINGS: Final = re.compile(r"(CUDA|CUPY|NVIDIA|POCL|OCL)_")
_NVIDIA: Final = Path("/proc/driver/nvidia")


def remember(cache_dir: Path, asked: str, devices: Iterable[Device]) -> None:
    """Store the devices opened for a setting; ignores a file that cannot be written."""
    path = _path(cache_dir, asked)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps([asdict(device) for device in devices]), encoding="utf-8")
        aside.replace(path)
        for old in sorted(cache_dir.glob("devices-*.json"), key=_modified, reverse=True)[_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError:
        aside.unlink(missing_ok=True)


def remembered(cache_dir: Path, asked: str) -> tuple[Device, ...] | None:
    """The devices that the same setting opened last; None if a source may have changed."""
    try:
        content = json.loads(_path(cache_dir, asked).read_text(encoding="utf-8"))
        devices = tuple(_device(members) for members in content)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    unsure = any(device.platform == "cuda" for device in devices) and not (_NVIDIA / "version").exists()
    return devices if devices and not unsure else None


def _path(cache_dir: Path, asked: str) -> Path:
    return cache_dir / f"devices-{_host(asked)[:16]}.json"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _device(members: dict[str, Any]) -> Device:
    return Device(**{**members, "limits": Limits(**members["limits"])})


def _host(asked: str) -> str:
    """A digest of all sources of the devices and their properties."""
    digest = sha256(asked.encode())
    for text in _facts():
        digest.update(b"\0" + text.encode())
    return digest.hexdigest()


def _facts() -> Iterator[str]:
    yield _processor()
    yield f"{sorted(os.sched_getaffinity(0))} {os.sysconf('SC_PHYS_PAGES')}"
    yield _read(_NVIDIA / "version")
    for gpu in sorted(_NVIDIA.glob("gpus/*/information")):
        yield _read(gpu)
    for name in _LIBRARIES:
        yield f"{name} {_version(name)}"
    yield from (f"{name}={value}" for name, value in sorted(os.environ.items()) if _SETTINGS.match(name))
    for path in sorted(Path(__file__).parent.glob("*/**/*.py")):
        yield _read(path)


def _processor() -> str:
    """The first processor's name and features; its clock, which changes, is left out."""
    lines = _read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if re.match(r"(vendor_id|cpu family|model|stepping|flags)", line))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
