"""CPUID and XGETBV, asked on this processor, and what is made of answers that others give."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import Any

import pytest

from app.devices.opencl.pocl.cpuid import Registers, decode, from_system, processor

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is x86's")

AVX = 1 << 28 | 1 << 27 | 1 << 26  # with OSXSAVE and XSAVE
OLD: dict[tuple[int, int], Registers] = {
    (0, 0): (4, 0, 0, 0),
    (1, 0): (0, 0, 1 << 9 | 1, 1 << 25 | 1 << 26),
    (7, 0): (9, 1 << 5 | 1 << 16, 1 << 8, 1 << 23),  # another leaf's registers, which such a processor answers with
    (0x80000000, 0): (0x80000000, 0, 0, 0),
}
NEW: dict[tuple[int, int], Registers] = {
    (0, 0): (13, 0, 0, 0),
    (1, 0): (0, 0, AVX | 1 << 12 | 1 << 29 | 1 << 23, 1 << 25 | 1 << 26),
    (7, 0): (1, 1 << 5 | 1 << 16 | 1 << 8, 1 << 8, 1 << 23),
    (7, 1): (1 << 4 | 1 << 5, 0, 0, 0),
    (0x80000000, 0): (0x80000004, 0, 0, 0),
    (0x80000001, 0): (0, 0, 1 << 5, 0),
    (0x80000002, 0): (0x41202020, 0x6F725020, 0, 0),  # "   A Pro"
}
YMM, ZMM = 0b111, 0b11100111


def test_cpuid_agrees_with_the_system() -> None:
    found, told = processor(), from_system(Path("/proc/cpuinfo"))
    assert found is not None
    assert found.source == "CPUID"
    assert "sse2" in found.features
    assert found.features == told.features
    assert found.name == told.name


@pytest.mark.parametrize(
    ("refused", "source"),
    [
        pytest.param({"mprotect"}, "CPUID", id="a-file-in-memory-is-executed"),
        pytest.param({"mprotect", "mmap"}, "/proc/cpuinfo", id="nothing-is-executed"),
    ],
)
def test_where_the_system_makes_no_memory_executable_another_way_is_found(
    monkeypatch: pytest.MonkeyPatch, refused: set[str], source: str
) -> None:
    class Refusing(ctypes.CDLL):
        def __getattr__(self, name: str) -> Any:
            if name not in refused:
                return super().__getattr__(name)
            if name == "mprotect":
                return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(lambda *_: -1)
            kinds = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]
            return ctypes.CFUNCTYPE(ctypes.c_void_p, *kinds)(lambda *_: -1 & (1 << 64) - 1)

    before = processor()
    monkeypatch.setattr(ctypes, "CDLL", Refusing)
    processor.cache_clear()
    try:
        found = processor()
    finally:
        processor.cache_clear()
    assert found is not None
    assert before is not None
    assert found.source == source
    assert found.features == before.features


def test_missing_leaf_is_not_asked() -> None:
    found = decode(lambda leaf, subleaf: OLD[leaf, subleaf], refused)
    assert found.features == {"sse", "sse2", "sse3", "ssse3"}
    assert found.name == ""


@pytest.mark.parametrize(
    ("saved", "features"),
    [
        (0b1, {"sse", "sse2", "popcnt", "bmi2", "gfni", "lzcnt"}),
        (YMM, {"sse", "sse2", "popcnt", "bmi2", "gfni", "lzcnt", "avx", "fma", "f16c", "avx2", "avxvnni"}),
    ],
)
def test_registers_that_the_system_does_not_save_are_not_used(saved: int, features: set[str]) -> None:
    found = decode(lambda leaf, subleaf: NEW.get((leaf, subleaf), (0, 0, 0, 0)), lambda _: saved)
    assert found.features == features
    assert found.name == "A Pro"


def test_avx512_is_used_where_the_system_saves_its_registers() -> None:
    found = decode(lambda leaf, subleaf: NEW.get((leaf, subleaf), (0, 0, 0, 0)), lambda _: ZMM)
    assert {name for name in found.features if name.startswith("avx512")} == {"avx512f", "avx512fp16", "avx512bf16"}


def test_hidden_avx_hides_what_builds_on_it() -> None:
    hidden = NEW | {(1, 0): (0, 0, 1 << 27 | 1 << 12 | 1 << 29, 1 << 26)}
    found = decode(lambda leaf, subleaf: hidden.get((leaf, subleaf), (0, 0, 0, 0)), lambda _: ZMM)
    assert found.features == {"sse2", "bmi2", "gfni", "lzcnt"}


def test_no_file_of_the_system_is_no_feature(tmp_path: Path) -> None:
    assert from_system(tmp_path / "cpuinfo").features == set()


def refused(number: int) -> int:
    raise AssertionError(f"XGETBV({number}) without OSXSAVE is an illegal instruction")
