"""naive: one thread for each element of C, from global memory alone; the baseline of tiling."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import lightest
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.naive.plan import plan
from kernels.naive.space import SPACE
from kernels.problem import Problem
from kernels.space import Config


def _default(problem: Problem, device: Device) -> Config:
    shapes = ((8, 32), (4, 32), (1, 64), (1, 8))
    return lightest(SPACE, [dict(zip(SPACE.parameters, shape, strict=True)) for shape in shapes], problem, device)


NAIVE: Final = Kernel(
    name="naive",
    summary="One thread for each element of C, every operand from global memory.",
    file="naive/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
)
