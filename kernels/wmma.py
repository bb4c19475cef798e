"""wmma: a warp for each 16 x 16 of C, which tensor cores multiply in steps of 16 along k; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.instructions import wmma
from kernels.kernel import Kernel, Plan
from kernels.model import lightest
from kernels.naive import blocks, grid_fits
from kernels.problem import Problem
from kernels.space import Config, Space

# An instruction's tile of A, of B and of C, and the threads that have one (PTX ISA, "wmma").
SIDE: Final = 16
WARP: Final = 32
# What the lines of shared tiles are longer by, as LINE_A and LINE_B of wmma.cu, and bytes of a sum.
PAD: Final = 8
SUM_BYTES: Final = 4
# Shared memory that a binary may declare (CUDA C++ Programming Guide, "Technical Specifications").
DECLARED_BYTES: Final = 48 * 1024
# The first architectures whose instructions take such elements.
SINCE: Final = {"float16": 70, "bfloat16": 80}


def threads(config: Config) -> int:
    """Threads of a block: a warp for each 16 x 16 of its tile."""
    return config["BM"] // SIDE * (config["BN"] // SIDE) * WARP


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both shared tiles with their padding, and of the sums on their way to C."""
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    of_a = bk * (bm + PAD) if problem.trans_a else bm * (bk + PAD)
    of_b = bn * (bk + PAD) if problem.trans_b else bk * (bn + PAD)
    return (of_a + of_b) * problem.itemsize + bm * bn * SUM_BYTES


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return threads(config) <= device.limits.threads


def _shared_fits(config: Config, problem: Problem, _: Device) -> bool:
    return shared_bytes(config, problem) <= DECLARED_BYTES


def _plan(config: Config, problem: Problem) -> Plan:
    return Plan(blocks(config, problem), (threads(config), 1), shared_bytes(config, problem))


SPACE: Final = Space(
    parameters={"BM": (16, 32, 64, 128), "BN": (16, 32, 64, 128), "BK": (16, 32, 64)},
    rules={
        "more threads a block than the device allows": _threads_fit,
        "more shared memory a block than a binary may declare": _shared_fits,
        "more than 2^31 - 1 blocks": grid_fits,
    },
    reads={
        "more threads a block than the device allows": ("BM", "BN"),
        "more than 2^31 - 1 blocks": ("BM", "BN"),
    },
)
# What defaults are chosen from, largest first: BM, BN, BK.
_TILES: Final = ((64, 64, 64), (32, 64, 64), (64, 32, 64), (32, 32, 64), (16, 64, 64), (64, 16, 64), (16, 16, 64))


def _default(problem: Problem, device: Device) -> Config:
    return lightest(SPACE, [dict(zip(SPACE.parameters, tile, strict=True)) for tile in _TILES], problem, device)


WMMA: Final = Kernel(
    name="wmma",
    summary="Tiles of 16 x 16 x 16 in shared memory that a warp multiplies at once on tensor cores.",
    file="wmma.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda",),
    plan=_plan,
    default=_default,
    since=lambda problem: SINCE[problem.dtype],
    instructions=wmma,
)
