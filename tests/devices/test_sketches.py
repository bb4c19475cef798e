"""Freivalds' check on the devices themselves: the sketches of products, and what ties them to the slab."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.devices.backend import Backend
from app.devices.opencl import OpenCLBackend
from kernels.freivalds import StoredMatrix, project, row_peaks, word_sums
from kernels.launch import Build
from kernels.problem import ITEMSIZE
from tests.support.devices.auxiliary_builds import ARCHITECTURES, expect_no_spills
from tests.support.devices.sketch_contract import Sketches


class TestOpenCL(Sketches):
    @pytest.fixture
    def backend(self, opencl: OpenCLBackend) -> Backend:
        return opencl


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
class TestCuda(Sketches):
    @pytest.fixture
    def backend(self, gpu: Backend) -> Backend:
        return gpu


def builds() -> list[Build]:
    found = [word_sums(1).build]
    for dtype in ITEMSIZE:
        for turned in (False, True):
            matrix = StoredMatrix(100, 200, 1, dtype, turned)
            found += [project(matrix).build, project(matrix).after[0].build, row_peaks(matrix).build]
    return found


@pytest.mark.drawn(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_its_kernels_compile_for_every_architecture_without_spilling(architecture: str, tmp_path: Path) -> None:
    expect_no_spills(builds(), architecture, tmp_path)
