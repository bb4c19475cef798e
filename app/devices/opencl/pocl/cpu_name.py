"""The CPU name that PoCL's LLVM is given, and the built-in library that goes with it.

PoCL 3.0 asks LLVM 14 for two things that need not fit each other: the processor's name, which is of LLVM's list and
goes by family and model, whatever a hypervisor hides; and the processor's features, by which it takes one of the
libraries that it was built with, each for one processor of that list. Where the name lacks a feature of the library
(Zen 4 is "znver3" to LLVM 14 and gets the library of AVX-512) the library's functions are not inlined: a product takes
10 to 20 times as long, or LLVM goes on for minutes and then gives up. Where the name has more than the processor, what
is compiled dies of an illegal instruction. And what LLVM does not know it calls "generic", a name that it then refuses
itself (PoCL's issue 1049).

So the library is the best of which the processor has everything, and the name is one that takes the library's
functions in and has nothing that the processor lacks: LLVM's own name where that holds. PoCL 3.0 has no setting for
either. The name is replaced where PoCL keeps it, in the device's record; the library by library.py.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, Final, TypeAlias

from app.devices.opencl.pocl import cpuid

_UNKNOWN: Final = "generic"
_RECORD: Final = 1024  # bytes of a device's record in which the two names are looked for
_WORD: Final = struct.calcsize("P")
# What LLVM 14 may use on each processor without being asked to by a kernel's text, in the words of cpuid.py. What it
# uses only when asked, such as AES or what an operating system uses, is left out: every one of these has SSE2.
_CORE2: Final = {"cx16", "sse3", "ssse3"}
_PENRYN: Final = _CORE2 | {"sse4_1"}
_NEHALEM: Final = _PENRYN | {"popcnt", "sse4_2"}
_SANDYBRIDGE: Final = _NEHALEM | {"avx"}
_IVYBRIDGE: Final = _SANDYBRIDGE | {"f16c"}
_HASWELL: Final = _IVYBRIDGE | {"avx2", "bmi", "bmi2", "fma", "lzcnt", "movbe"}
_BROADWELL: Final = _HASWELL | {"adx"}
_SKYLAKE: Final = _BROADWELL | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_CASCADELAKE: Final = _SKYLAKE | {"avx512vnni"}
_COOPERLAKE: Final = _CASCADELAKE | {"avx512bf16"}
_ICELAKE: Final = _CASCADELAKE | {
    "avx512bitalg",
    "avx512ifma",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512vpopcntdq",
    "gfni",
}
_SAPPHIRERAPIDS: Final = _ICELAKE | {"avx512bf16", "avx512fp16", "avxvnni"}
_BULLDOZER: Final = _SANDYBRIDGE | {"fma4", "lzcnt", "sse4a", "xop"}
_PILEDRIVER: Final = _BULLDOZER | {"bmi", "f16c", "fma", "tbm"}
Names: TypeAlias = dict[str, set[str]]
# PoCL's libraries, the best first. Of each: the features by which PoCL takes it (it takes the first that fits), the
# features that it has, and the processors that its functions are inlined for, with what they have. The first name is
# for processors that LLVM does not know; the others are only kept where LLVM gives them itself.
_AVX2_TAKEN: Final = {"avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "popcnt"}
LIBRARIES: Final[dict[str, tuple[set[str], set[str], Names]]] = {
    "avx512": (
        {"avx512f"},
        _SKYLAKE,
        {
            "icelake-server": _ICELAKE,
            "skylake-avx512": _SKYLAKE,
            "cascadelake": _CASCADELAKE,
            "cooperlake": _COOPERLAKE,
            "tigerlake": _ICELAKE,
            "sapphirerapids": _SAPPHIRERAPIDS,
        },
    ),
    "avx2": (_AVX2_TAKEN, _HASWELL, {"haswell": _HASWELL, "broadwell": _BROADWELL, "skylake": _BROADWELL}),
    "avx_fma4": (
        {"avx", "cx16", "fma4", "popcnt", "xop"},
        _BULLDOZER,
        {"bdver1": _BULLDOZER, "bdver2": _PILEDRIVER, "bdver3": _PILEDRIVER},
    ),
    "avx_f16c": ({"avx", "cx16", "f16c", "popcnt"}, _IVYBRIDGE, {"ivybridge": _IVYBRIDGE}),
    "avx": ({"avx", "cx16", "popcnt"}, _SANDYBRIDGE, {"sandybridge": _SANDYBRIDGE}),
    "sse41": ({"cx16", "sse4_1"}, _PENRYN, {"nehalem": _NEHALEM, "penryn": _PENRYN, "westmere": _NEHALEM}),
    "ssse3": ({"cx16", "ssse3"}, _CORE2, {"core2": _CORE2}),
    "sse2": (set(), set(), {"athlon64": set()}),
}


def taken_library(features: frozenset[str]) -> str:
    """The library that PoCL 3.0 takes by itself on a processor with these features."""
    return next(name for name, (by, _, _) in LIBRARIES.items() if by <= features)


def library_for(features: frozenset[str]) -> str:
    """The best library whose features a CPU has in full."""
    return next(name for name, (_, has, _) in LIBRARIES.items() if has <= features)


def name_for(features: frozenset[str], own: str = _UNKNOWN) -> str:
    """The name for LLVM: its own if it inlines the library's functions and the CPU has all its features."""
    names = LIBRARIES[library_for(features)][2]
    fitting = [name for name, has in names.items() if has <= features]
    return own if own in fitting else fitting[0]


def rename(device: Any) -> str | None:
    """Give PoCL the name for LLVM, and give it back; None if the device's record is not as PoCL 3.0 keeps it.

    Looks for the pointer to LLVM's own name that follows the one to the target's triple, both of which the device's
    version ends with. Does nothing if they are not found; another call for the same device gives the same name.
    A PoCL without libraries for several processors was built for one, and is only helped out of "generic".
    """
    host = cpuid.processor()
    triple, dash, own = _target(device.version)
    if host is None or not dash or (own != _UNKNOWN and not has_libraries(device.platform.version)):
        return None
    chosen = name_for(host.features, own)
    for place in range(device.int_ptr, device.int_ptr + _RECORD, _WORD):
        if _text(_pointer(place)) == triple and _text(_pointer(place + _WORD)) in {own, chosen}:
            copy = ctypes.CDLL(None).strdup
            copy.restype = ctypes.c_void_p
            ctypes.c_void_p.from_address(place + _WORD).value = copy(chosen.encode())
            return chosen
    return None


def has_libraries(platform_version: str) -> bool:
    """Whether this PoCL takes one of several libraries by the host's features, with LLVM 14's names."""
    return "DISTRO" in platform_version and "LLVM 14." in platform_version


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
    """Read this process's memory; empty if it is not mapped, where a plain read would crash."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        return os.pread(memory, count, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(memory)
