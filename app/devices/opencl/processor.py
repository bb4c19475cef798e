"""A processor that is newer than PoCL's LLVM: given the name of an older one, or nothing would compile for it.

LLVM calls what it does not know "generic", and then refuses that name itself ("unknown target CPU 'generic'", PoCL's
issue 1049). PoCL 3.0 has no setting for it, so the name is replaced where PoCL keeps it, in the device's record. The
names of x86-64's levels would not do: PoCL's library is compiled for whole processors, and what has an instruction more
than its caller is not inlined (a product took 20 times as long).
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any, Final

_UNKNOWN: Final = "generic"
_RECORD: Final = 1024  # bytes of a device's record in which the two names are looked for
_WORD: Final = struct.calcsize("P")
# What LLVM 14 may use on each without being asked to, in the words of /proc/cpuinfo: the newest first.
_HASWELL: Final = {"abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "movbe", "popcnt", "sse4_1", "sse4_2"}
_SKYLAKE: Final = _HASWELL | {"adx", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_NEWER: Final = {"ifma", "vbmi", "_bitalg", "_vbmi2", "_vnni", "_vpopcntdq"}
_ICELAKE: Final = _SKYLAKE | {f"avx512{name}" for name in _NEWER} | {"gfni", "vaes", "vpclmulqdq"}
_NAMES: Final = {"icelake-server": _ICELAKE, "skylake-avx512": _SKYLAKE, "haswell": _HASWELL}


def likeness(flags: set[str]) -> str:
    """The newest processor that LLVM knows and that has nothing which one with these flags has not."""
    return next((name for name, needed in _NAMES.items() if needed <= flags), "x86-64")


def introduce(device: Any) -> str | None:
    """Give PoCL a name for a processor that its LLVM does not know; None where it knows it, or cannot be told.

    Looks for the pointer to "generic" that follows the one to the target's triple, both of which the device's version
    ends with. Does nothing where they are not found; another call for the same device gives the same name again.
    """
    triple, dash, name = _target(device.version)
    if not dash or name != _UNKNOWN:
        return None
    found = likeness(_flags())
    for place in range(device.int_ptr, device.int_ptr + _RECORD, _WORD):
        if _text(_pointer(place)) == triple and _text(_pointer(place + _WORD)) in {_UNKNOWN, found}:
            copy = ctypes.CDLL(None).strdup
            copy.restype = ctypes.c_void_p
            ctypes.c_void_p.from_address(place + _WORD).value = copy(found.encode())
            return found
    return None


def _target(version: str) -> tuple[str, str, str]:
    """The triple, a dash, and LLVM's name of the processor: (…) pthread-x86_64-unknown-linux-gnu-generic."""
    whole = version.rpartition(" ")[2].removeprefix("pthread-").removeprefix("cpu-")
    triple, dash, name = whole.partition("-gnu-")
    return triple + dash.removesuffix("-"), dash, name


def _pointer(address: int) -> int:
    return int(struct.unpack("P", _bytes(address, _WORD) or bytes(_WORD))[0])


def _text(address: int) -> str:
    return _bytes(address, 64).partition(b"\0")[0].decode("ascii", errors="replace")


def _bytes(address: int, count: int) -> bytes:
    """Read our own memory; nothing where none is mapped, which a plain read would not survive."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        return os.pread(memory, count, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(memory)


def _flags() -> set[str]:
    with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
        return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
