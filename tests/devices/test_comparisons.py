"""Comparisons with a reference product, on the devices themselves."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from app.devices.backend import Backend, WorkerContext
from app.devices.opencl import OpenCLBackend
from app.devices.process import WorkerLink
from app.tuning.verify.tolerance import operands
from app.worker.measuring.device_reference import DeviceReference, is_compared_there
from app.worker.measuring.fixture import reference_of
from kernels.comparison import compare, norms, widen
from kernels.launch import Build
from kernels.problem import ITEMSIZE, Problem
from tests.support.devices.auxiliary_builds import ARCHITECTURES, expect_no_spills
from tests.support.devices.comparison_contract import Comparisons
from tests.support.tuning.host_device import RecordedLink


class TestOpenCL(Comparisons):
    @pytest.fixture
    def backend(self, opencl: OpenCLBackend) -> Backend:
        return opencl


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
class TestCuda(Comparisons):
    @pytest.fixture
    def backend(self, gpu: Backend) -> Backend:
        return gpu

    def test_products_are_compared_there(self, gpu: Backend) -> None:
        """As the service has it: the contract's other tests say so by a patch."""
        assert is_compared_there(gpu, Problem(1024, 1024, 1024))
        assert not is_compared_there(gpu, Problem(64, 64, 64))
        problem = Problem(1024, 1000, 512, dtype="bfloat16", trans_b=True)
        held, link = WorkerContext(gpu, memoryview(b"")), cast("WorkerLink", RecordedLink([]))
        assert isinstance(reference_of(held, link, problem, *operands(problem, 1), 1), DeviceReference)


def builds() -> list[Build]:
    found = []
    for dtype in ITEMSIZE:
        for turned in (False, True):
            problem = Problem(100, 200, 300, 2, dtype, trans_a=turned)
            found += [widen(problem, "a").build, norms(problem, "a").build, compare(problem).build]
    return found


@pytest.mark.drawn(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_their_kernels_compile_for_every_architecture_without_spilling(architecture: str, tmp_path: Path) -> None:
    expect_no_spills(builds(), architecture, tmp_path)
