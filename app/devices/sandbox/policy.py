"""What a worker of a platform needs, and may do: the rest is refused."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.devices.sandbox import landlock, seccomp
from app.devices.sandbox.support import Support

_NO_NEW_PRIVILEGES: Final = 38
# Libraries and programs, and what they and Python read of the system. Not /etc as a whole, nor anybody's home.
_SYSTEM: Final = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix", "/gnu", "/proc", "/sys"),
    *("/dev/urandom", "/dev/random", "/dev/zero"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/OpenCL", "/etc/ssl/openssl.cnf"),
    *("/etc/group", "/etc/locale.alias", "/etc/localtime", "/etc/machine-id", "/etc/nsswitch.conf", "/etc/passwd"),
    *("/etc/debian_version", "/etc/lsb-release", "/etc/os-release", "/etc/redhat-release"),
)
# Where distributions put the driver's libraries, and what its daemons and MPS share with processes.
_DRIVER: Final = ("/etc", "/opt", "/run", "/var/run", "/snap", "/mnt/wsl")
_DRIVER_FOLDERS: Final = ("CUDA_HOME", "CUDA_PATH")
_DRIVER_CACHES: Final = (
    *("CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
    *("TMPDIR", "TEMP", "TMP"),
)
# What every use of CUDA opens: its driver has a program with privileges make those that are missing.
_DEVICE_FILES: Final = ("nvidiactl", "nvidia-uvm")
_DEVICES, _GPUS = Path("/dev"), Path("/proc/driver/nvidia/gpus")
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - MPS's pipes are there too


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a process is left with, where the kernel has a means to take the rest from it.

    Paths to read and run, to write too, and of devices; families of sockets. `alone`: it reaches no other process.
    """

    support: Support
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    families: tuple[int, ...] = ()
    alone: bool = True

    def enter(self) -> None:
        """Restrict this process, which has one thread, for good; raises OSError."""
        if not self.support.parts:
            return
        ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if self.support.landlock:
            landlock.restrict(self.support.landlock, self.read, self.write, self.devices, alone=self.alone)
        if self.support.filters:
            seccomp.install(self.families)


def of_platform(support: Support, platform: str, cache_dir: Path) -> Sandbox:
    """The sandbox of a platform's workers; the folders of the cache are there already."""
    cache = cache_dir.absolute()
    read = (*_SYSTEM, *_python(), *_libraries(), str(cache))
    if platform != "cuda":
        return Sandbox(support, read, (str(cache / "bin"), str(cache / "pocl"), "/dev/null"))
    read = (*read, *_DRIVER, *_named(_DRIVER_FOLDERS))
    write = (str(cache / "cuda"), *_homes(), *_TEMPORARY, *_named(_DRIVER_CACHES))
    families = (socket.AF_UNIX, socket.AF_NETLINK)
    return Sandbox(support, read, write, ("/dev", "/proc"), tuple(map(int, families)), alone=False)


def of_discovery(
    support: Support, platform: str, cache_dir: Path, devices: Path = _DEVICES, gpus: Path = _GPUS
) -> Sandbox:
    """The sandbox of the process that asks a platform for its devices: its workers'.

    Where device files of GPUs are missing, CUDA makes them, for which a confined process has no privileges: there, and
    where no GPU is, nothing is restricted.
    """
    if platform == "cuda" and not _has_device_files(devices, gpus):
        return Sandbox(Support())
    return of_platform(support, platform, cache_dir)


def _has_device_files(devices: Path, gpus: Path) -> bool:
    known = len(list(gpus.iterdir())) if gpus.is_dir() else 1
    return all((devices / name).exists() for name in _DEVICE_FILES) and len([*devices.glob("nvidia[0-9]*")]) >= known


def _python() -> Iterator[str]:
    """Where Python and its packages are loaded from."""
    yield from (sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from (str(Path(entry).absolute()) for entry in sys.path)


def _homes() -> Iterator[str]:
    """Where the driver and CuPy keep things, if this user has a home."""
    with suppress(RuntimeError):
        yield from (str(Path.home() / ".nv"), str(Path.home() / ".cupy"))


def _libraries() -> Iterator[str]:
    for variable in ("LD_LIBRARY_PATH", "OCL_ICD_VENDORS"):
        yield from filter(None, os.environ.get(variable, "").split(os.pathsep))


def _named(variables: tuple[str, ...]) -> Iterator[str]:
    yield from filter(None, map(os.environ.get, variables))
