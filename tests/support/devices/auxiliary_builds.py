"""Builds of kernels that are no products: those of checks and comparisons on the device."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kernels.launch import Build

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def distinct(builds: Iterable[Build]) -> dict[str, Build]:
    """Each build once, by its name and the macros that are 1."""
    return {f"{each.name} {' '.join(name for name, value in each.macros if value == '1')}": each for each in builds}


def expect_no_spills(builds: Iterable[Build], architecture: str, folder: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    for name, build in distinct(builds).items():
        cubin = cuda.compile_cubin(build, architecture, folder)
        assert cubin.registers is not None, name
        assert cubin.spills == 0, name
