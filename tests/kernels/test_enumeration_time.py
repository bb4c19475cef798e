"""Each space is listed within its seconds of processor time, on shapes that leave many configs or take long."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest

from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem
from tests.support.kernels.devices import H200, PROCESSOR
from tests.support.kernels.hopper_configs import CLASSES, shapes
from tests.support.kernels.hopper_configs import H200 as TENSOR_H200

pytestmark = pytest.mark.timing
CUBE, HALVES = Problem(1024, 1024, 1024), Problem(4096, 4096, 4096, dtype="bfloat16")
BATCHES = ((16, 16, 16, 4096), (32, 32, 32, 1024), (64, 64, 64, 512), (128, 128, 128, 128))
FLAT = ((1, 4096, 4096), (4, 8192, 2048), (16, 8192, 8192), (4096, 8, 4096), (16, 4096, 4096), (8192, 1, 2048))
LONG = ((131072, 64, 64), (262144, 16, 32), (65536, 128, 512), (64, 131072, 64))
LARGEST = [
    ("register_tiled", CUBE, H200, 1.0),
    ("pipelined", Problem(16, 8192, 8192), H200, 1.0),
    ("pipelined", Problem(2809, 2633, 4816, trans_b=True), H200, 1.0),
    ("pipelined", Problem(1400, 130, 1835, trans_a=True), H200, 3.0),
    ("double_tensor", replace(HALVES, dtype="float64"), H200, 1.0),
    ("double_hopper", Problem(2048, 2048, 2048, dtype="float64"), H200, 1.0),
    *(("batched", Problem(*shape, dtype=dtype), H200, 1.0) for shape in BATCHES for dtype in ("float32", "float64")),
    *(("skinny", Problem(*shape), device, 1.0) for shape in FLAT for device in (H200, PROCESSOR)),
    *(("gemv", Problem(*shape), H200, 1.0) for shape in FLAT if min(shape) <= 8),
    *(("tall", Problem(*shape), H200, 1.0) for shape in LONG),
    ("tall", Problem(33, 300000, 100, dtype="float64", trans_a=True), PROCESSOR, 1.0),
    ("tensor_core", HALVES, H200, 1.0),
    ("tensor_core", replace(HALVES, dtype="float32", precision="tf32"), H200, 1.0),
    ("tensor_core", replace(HALVES, dtype="float32", precision="emulated"), H200, 1.0),
    ("tensor_core", replace(HALVES, m=94, n=380, k=8042, trans_b=True), H200, 3.0),
    ("hopper", replace(HALVES, m=370, n=150, k=13930, trans_a=True), TENSOR_H200, 3.0),
    *(("hopper", problem, TENSOR_H200, 3.0) for one in CLASSES[1:] for problem in shapes(*one)[::3]),
]


@pytest.mark.parametrize(("kernel", "problem", "device", "most"), LARGEST)
def test_a_space_is_listed_in_time(kernel: str, problem: Problem, device: Device, most: float) -> None:
    def seconds() -> float:
        started = process_time()
        assert CATALOGUE[kernel].space.legal(problem, device)
        return process_time() - started

    assert min(seconds() for _ in range(2)) < most
