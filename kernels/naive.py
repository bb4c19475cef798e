"""naive: one thread for each element of C, from global memory alone; what tiling is compared with."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Plan
from kernels.model import lightest
from kernels.problem import Problem
from kernels.space import Config, Space

MAX_GRID: Final = 2**31 - 1


def blocks(config: Config, problem: Problem) -> int:
    """Blocks of the one-dimensional grid: one for each BM x BN tile of each batch's C."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def threads_fit(config: Config, _: Problem, device: Device) -> bool:
    """Whether a block of BN x BM threads is within the device's limit."""
    return config["BM"] * config["BN"] <= device.limits.threads


def grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    """Whether the grid's one dimension is within CUDA's limit of 2^31 - 1 blocks."""
    return blocks(config, problem) <= MAX_GRID


def _plan(config: Config, problem: Problem) -> Plan:
    return Plan(blocks(config, problem), (config["BN"], config["BM"]))


SPACE: Final = Space(
    parameters={"BM": (1, 2, 4, 8, 16, 32), "BN": (8, 16, 32, 64, 128, 256)},
    rules={"more threads a block than the device allows": threads_fit, "more than 2^31 - 1 blocks": grid_fits},
)


def _default(problem: Problem, device: Device) -> Config:
    shapes = ((8, 32), (4, 32), (1, 64), (1, 8))
    return lightest(SPACE, [dict(zip(SPACE.parameters, shape, strict=True)) for shape in shapes], problem, device)


NAIVE: Final = Kernel(
    name="naive",
    summary="One thread for each element of C, every operand from global memory.",
    file="naive.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda", "opencl"),
    plan=_plan,
    default=_default,
)
