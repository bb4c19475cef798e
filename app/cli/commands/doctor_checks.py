"""Checks of the host that doctor makes before any device is opened."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from app.devices import host, sandbox
from app.errors import TilewiseError
from app.settings import Settings
from tilewise import Client, ClientError

_LITTLE: Final = 2**30  # bytes of disk: an hour of tuning keeps up to some hundred megabytes
_LEAST: Final = 2**26
_LIBRARIES: Final = {
    "cuda": ("cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "nvidia-cublas-cu12"),
    "opencl": ("pyopencl", "pocl-binary-distribution"),
}
_WHOLE: Final = {"cuda": "cupy-cuda12x", "opencl": "'pyopencl[pocl]'"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was examined: how it stands, what was found, and what to do where that is not well."""

    name: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    advice: str = ""


def of_host(settings: Settings, url: str | None) -> Iterator[Check]:
    """Examine the program, its libraries, the driver, the folders, the port, the database, and the host's limits."""
    yield _program()
    yield from _libraries()
    yield _driver()
    if url:
        return  # the rest is the service's
    for name, folder in (("data folder", settings.data_dir), ("kernels' folder", settings.cache)):
        yield _folder(name, folder)
    yield _port(settings)
    yield _database(settings)
    yield _sandbox(settings)
    yield _locked_memory(settings)
    yield _governor()


def _program() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    told = f"Tilewise {version('tilewise')}, Python {platform.python_version()} at {sys.executable}, {system}"
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return Check("program", "ok", told)
    return Check("program", "wrong", told, "kernels run on Linux x86-64; the client runs here: give --url")


def _libraries() -> Iterator[Check]:
    for name, packages in _LIBRARIES.items():
        found = [f"{package} {number}" for package in packages if (number := _version(package))]
        if found:
            yield Check(f"{name} libraries", "ok", ", ".join(found))
        else:
            yield Check(f"{name} libraries", "warning", "none is installed", f"pip install {_WHOLE[name]}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _driver() -> Check:
    newest = host.cuda_driver()
    if newest is None:
        return Check("NVIDIA driver", "ok", "there is none: products are made by the CPU")
    told = f"{host.nvidia_driver() or 'version unknown'}, for CUDA up to {newest // 1000}.{newest % 1000 // 10}"
    return Check("NVIDIA driver", "ok", told)


def _folder(name: str, folder: Path) -> Check:
    """Whose it is, whether it can be written and run from, and how much room is left."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    told = f"{folder}" if folder.exists() else f"{folder} is not there yet and would be made in {there}"
    try:
        free = shutil.disk_usage(there).free
        told += f", {_owner(there)}'s, {free / 2**30:.1f} GiB free"
    except OSError as error:
        return Check(name, "wrong", f"{told}: {error.strerror}", "choose another with TILEWISE_DATA_DIR")
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check(name, "wrong", f"{told}, cannot be written", "choose another with TILEWISE_DATA_DIR")
    if name == "kernels' folder" and os.statvfs(there).f_flag & os.ST_NOEXEC:
        advice = "set TILEWISE_CACHE_DIR to a folder that programs may be loaded from"
        return Check(name, "wrong", f"{told}, mounted noexec: PoCL cannot load its kernels", advice)
    if free < _LITTLE:
        return Check(name, "wrong" if free < _LEAST else "warning", told, "make room, or choose another folder")
    return Check(name, "ok", told)


def _owner(folder: Path) -> str:
    uid = folder.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _port(settings: Settings) -> Check:
    """Whether serve could listen, or who does."""
    if settings.port == "off":
        return Check("port", "ok", "there is none: the Unix socket alone is listened on")
    place = f"{settings.host} port {settings.port}"
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((settings.host, settings.port))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return Check("port", "ok", f"{place} is free")
    try:
        with Client(f"http://{settings.host}:{settings.port}", timeout=2, retries=0) as client:
            status = client.readiness().status
    except (ClientError, ValueError):
        return Check("port", "warning", f"{place}: {reason}", "choose another with TILEWISE_PORT or serve --port")
    return Check("port", "ok", f"{place} is a Tilewise service's, which is {status}")


def _database(settings: Settings) -> Check:
    """Its schema, who owns it, and whether it is sound."""
    from app.store import inspection  # noqa: PLC0415 - the other checks need not load the database

    try:
        found = inspection.examine(settings.database)
    except TilewiseError as error:
        return Check("database", "wrong", error.message, "restore a copy, or choose another data folder")
    if found.revision is None:
        return Check("database", "ok", f"{found.database} is not there yet: the first command makes it")
    who = f"open in {found.owner}" if found.owner else "nobody has it open"
    told = f"{found.database}, schema {found.revision}, {who}"
    if found.broken:
        return Check("database", "wrong", f"{told}: {found.broken}", "restore a copy: what is stored is damaged")
    if found.revision != found.newest:
        return Check("database", "warning", f"{told}, and this program's is {found.newest}", "tilewise migrate")
    return Check("database", "ok", told)


def _sandbox(settings: Settings) -> Check:
    """What is restricted of the processes that run kernels."""
    if settings.sandbox == "off":
        return Check("sandbox", "warning", "off: kernels' processes may do what this user may", "TILEWISE_SANDBOX=on")
    found = sandbox.support()
    told = f"restricted of kernels' processes: {', '.join(found.parts) or 'nothing'}"
    if found.missing:
        advice = "a kernel with Landlock (Linux 6.12 has all of it), and a container that allows it"
        return Check("sandbox", "warning", f"{told}; this system cannot restrict {', '.join(found.missing)}", advice)
    return Check("sandbox", "ok", told)


def _locked_memory(settings: Settings) -> Check:
    limit = host.locked_memory_limit()
    told = "unlimited" if limit is None else f"{limit:,} bytes"
    if host.cuda_driver() is None or limit is None or limit >= settings.slab_bytes:
        return Check("memory lock limit", "ok", told)
    advice = "ulimit -l unlimited, or LimitMEMLOCK=infinity in systemd: copies to the GPU are slower without"
    return Check("memory lock limit", "warning", f"{told}, and the slab is {settings.slab_bytes:,}", advice)


def _governor() -> Check:
    found = host.governor()
    if found in {"powersave", "ondemand", "conservative"}:
        return Check(
            "CPU clocks", "warning", f"governor {found}: timings wander", "cpupower frequency-set -g performance"
        )
    return Check("CPU clocks", "ok", f"governor {found}" if found else "the system does not tell of a governor")
