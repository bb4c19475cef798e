"""The CPU's features and name, by the CPUID and XGETBV instructions.

They are asked in the process that will run the code: /proc/cpuinfo is the host's where the processor is emulated, and
leaves out nothing that the kernel does not let programs use, such as the registers of AVX-512. The machine code stands
in a mapping of its own, written first and executed then, never both; a system that allows neither this nor a file in
memory to be executed has /proc/cpuinfo read, which the caller is told.

Sources: Intel's Software Developer's Manual, volume 2A, CPUID, and volume 1, 13.2 and 15.2 (XCR0); AMD's manual,
volume 3, appendix E.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

INSTRUCTIONS: Final = "CPUID"
Registers: TypeAlias = tuple[int, int, int, int]  # EAX, EBX, ECX, EDX

EAX, EBX, ECX, EDX = range(4)
_EXTENDED: Final = 0x80000000
_OSXSAVE: Final = 1 << 27
_YMM: Final = 0b110  # bits of XCR0: the system saves XMM and YMM
_ZMM: Final = _YMM | 0xE0  # and the mask registers and both halves of ZMM
# (leaf, subleaf, register) -> feature -> bit. The features have the names of Clang's macros, in small letters.
_PLAIN: Final[dict[tuple[int, int, int], dict[str, int]]] = {
    (1, 0, EDX): {"sse": 25, "sse2": 26},
    (1, 0, ECX): {"sse3": 0, "ssse3": 9, "cx16": 13, "sse4_1": 19, "sse4_2": 20, "movbe": 22, "popcnt": 23},
    (7, 0, EBX): {"bmi": 3, "bmi2": 8, "adx": 19},
    (7, 0, ECX): {"gfni": 8},
    (_EXTENDED + 1, 0, ECX): {"lzcnt": 5, "sse4a": 6, "tbm": 21},
}
_OF_YMM: Final[dict[tuple[int, int, int], dict[str, int]]] = {
    (1, 0, ECX): {"avx": 28, "fma": 12, "f16c": 29},
    (7, 0, EBX): {"avx2": 5},
    (7, 1, EAX): {"avxvnni": 4},
    (_EXTENDED + 1, 0, ECX): {"xop": 11, "fma4": 16},
}
_OF_ZMM: Final[dict[tuple[int, int, int], dict[str, int]]] = {
    (7, 0, EBX): {
        "avx512f": 16,
        "avx512dq": 17,
        "avx512ifma": 21,
        "avx512cd": 28,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    (7, 0, ECX): {"avx512vbmi": 1, "avx512vbmi2": 6, "avx512vnni": 11, "avx512bitalg": 12, "avx512vpopcntdq": 14},
    (7, 0, EDX): {"avx512fp16": 23},
    (7, 1, EAX): {"avx512bf16": 5},
}
# Where /proc/cpuinfo has another word for a feature.
_SYSTEM_WORDS: Final = {"pni": "sse3", "abm": "lzcnt", "bmi1": "bmi", "avx_vnni": "avxvnni"}
# cpuid(leaf, subleaf, registers): the arguments are in EDI, ESI and RDX.
_CPUID: Final = bytes.fromhex("534989d089f889f10fa241890041895804418948084189500c5bc3")
# xgetbv(number): the register's value.
_XGETBV: Final = bytes.fromhex("89f90f01d048c1e2204809d0c3")


@dataclass(frozen=True)
class Processor:
    """A processor's features, those that the system lets programs use, its own name, and how they were found."""

    features: frozenset[str]
    name: str
    source: str = INSTRUCTIONS


@cache
def processor() -> Processor | None:
    """The processor that this process runs on; None if it is no x86-64."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return None
    for executable in (_anonymous, _in_memory_file):
        with suppress(OSError, ValueError), executable(_CPUID.ljust(64, b"\xcc") + _XGETBV) as address:
            return decode(_cpuid_at(address), _xgetbv_at(address + 64))
    return from_system(Path("/proc/cpuinfo"))


def decode(cpuid: Callable[[int, int], Registers], xgetbv: Callable[[int], int]) -> Processor:
    """Decode CPUID's results; `xgetbv` is called only if the system allows it."""
    highest, highest_extended = cpuid(0, 0)[EAX], cpuid(_EXTENDED, 0)[EAX]
    subleaves = cpuid(7, 0)[EAX] if highest >= 7 else 0  # noqa: PLR2004 - the leaf of newer features

    def ask(leaf: int, subleaf: int) -> Registers:
        """Nothing, for a leaf that is not there: the processor would answer with another one's registers."""
        known = leaf <= (highest if leaf < _EXTENDED else highest_extended)
        return cpuid(leaf, subleaf) if known and subleaf <= (subleaves if leaf == 7 else 0) else (0, 0, 0, 0)  # noqa: PLR2004

    saved = xgetbv(0) if ask(1, 0)[ECX] & _OSXSAVE else 0
    tables = [_PLAIN, *([_OF_YMM] if saved & _YMM == _YMM else []), *([_OF_ZMM] if saved & _ZMM == _ZMM else [])]
    features = {
        name
        for table in tables
        for (leaf, subleaf, register), bits in table.items()
        for name, bit in bits.items()
        if ask(leaf, subleaf)[register] >> bit & 1
    }
    text = b"".join(struct.pack("<4I", *ask(_EXTENDED + number, 0)) for number in (2, 3, 4))
    name = " ".join(text.partition(b"\0")[0].decode("ascii", errors="replace").split())
    return Processor(frozenset(features if "avx" in features else features - _needing_avx()), name)


def from_system(cpuinfo: Path) -> Processor:
    """The CPU by /proc/cpuinfo, if its instructions cannot be called."""
    words: dict[str, str] = {}
    with suppress(OSError):
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").partition("\n\n")[0].splitlines()
        words = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    plain = (word.replace("avx512_", "avx512") for word in words.get("flags", "").split())
    features = {_SYSTEM_WORDS.get(word, word) for word in plain} & _known()
    return Processor(frozenset(features), words.get("model name", ""), source=str(cpuinfo))


def _known() -> set[str]:
    return {name for table in (_PLAIN, _OF_YMM, _OF_ZMM) for bits in table.values() for name in bits}


def _needing_avx() -> set[str]:
    return {name for table in (_OF_YMM, _OF_ZMM) for bits in table.values() for name in bits}


def _cpuid_at(address: int) -> Callable[[int, int], Registers]:
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32))
    function = prototype(address)

    def cpuid(leaf: int, subleaf: int) -> Registers:
        found = (ctypes.c_uint32 * 4)()
        function(leaf, subleaf, found)
        return found[0], found[1], found[2], found[3]

    return cpuid


def _xgetbv_at(address: int) -> Callable[[int], int]:
    function: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)(address)
    return function


@contextmanager
def _anonymous(code: bytes) -> Iterator[int]:
    """The code in anonymous memory made executable; raises OSError if the system forbids that."""
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        room.write(code)
        start = ctypes.c_char.from_buffer(room)
        address = ctypes.addressof(start)
        try:
            protect = ctypes.CDLL(None, use_errno=True).mprotect
            protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
                raise OSError(ctypes.get_errno(), "memory cannot be made executable")
            yield address
        finally:
            del start


@contextmanager
def _in_memory_file(code: bytes) -> Iterator[int]:
    """The code in a memory file mapped executable, as a library is; raises OSError if the system forbids that."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    file = os.memfd_create("tilewise-cpuid")
    try:
        os.write(file, code.ljust(mmap.PAGESIZE, b"\xcc"))
        address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "a file cannot be mapped as code")
        try:
            yield int(address)
        finally:
            libc.munmap(address, mmap.PAGESIZE)
    finally:
        os.close(file)
