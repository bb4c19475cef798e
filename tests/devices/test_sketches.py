"""Freivalds' check on the devices themselves: the sketches of products, and what ties them to the slab."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devices.backend import Backend
from app.devices.opencl import OpenCLBackend
from kernels.freivalds import StoredMatrix, project, row_peaks, word_sums
from kernels.launch import Build
from kernels.problem import ITEMSIZE
from tests.support.devices.sketch_contract import Sketches


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenCLBackend]:
    before = dict(os.environ)  # a child's own otherwise: PoCL is told where to compile by its environment
    backend = OpenCLBackend("opencl:0", tmp_path_factory.mktemp("cache"))
    yield backend
    backend.close()
    os.environ.clear()
    os.environ |= before


class TestOpenCL(Sketches):
    @pytest.fixture
    def backend(self, opencl: OpenCLBackend) -> Backend:
        return opencl


@pytest.fixture(scope="module")
def gpu(driver: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    del driver
    cuda = pytest.importorskip("app.devices.cuda")
    backend: Backend = cuda.CudaBackend("cuda:0", tmp_path_factory.mktemp("cache"))
    yield backend
    backend.close()


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
class TestCuda(Sketches):
    @pytest.fixture
    def backend(self, gpu: Backend) -> Backend:
        return gpu


def builds() -> dict[str, Build]:
    found = [word_sums(1).build]
    for dtype in ITEMSIZE:
        for turned in (False, True):
            matrix = StoredMatrix(100, 200, 1, dtype, turned)
            found += [project(matrix).build, project(matrix).after[0].build, row_peaks(matrix).build]
    return {f"{each.name} {' '.join(name for name, value in each.macros if value == '1')}": each for each in found}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_its_kernels_compile_for_every_architecture_without_spilling(architecture: str, tmp_path: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    for name, build in builds().items():
        cubin = cuda.compile_cubin(build, architecture, tmp_path)
        assert cubin.registers is not None, name
        assert cubin.spills == 0, name
