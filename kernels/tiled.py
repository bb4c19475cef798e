"""tiled: tiles of A and B in shared memory, one thread for each element of C's tile."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel
from kernels.naive import blocks, grid_fits, threads_fit
from kernels.problem import Problem
from kernels.space import Config, Space

SIZES: Final = (4, 8, 16, 32, 64)


def padding(rows: int, depth: int, itemsize: int) -> int:
    """Elements added to a shared row of `rows`, where a load runs along `depth`, so that its stores share no bank."""
    wide = 128 // itemsize
    return max(1, wide // depth) if rows * depth > wide else 0


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both shared tiles with their padding, as tiled.cu declares them."""
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    stride_a = bm + (0 if problem.trans_a else padding(bm, bk, problem.itemsize))
    stride_b = bn + (padding(bn, bk, problem.itemsize) if problem.trans_b else 0)
    return (stride_a + stride_b) * bk * problem.itemsize


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes


def _plan(config: Config, problem: Problem) -> tuple[int, tuple[int, int], int]:
    return blocks(config, problem), (config["BN"], config["BM"]), shared_bytes(config, problem)


SPACE: Final = Space(
    parameters={"BM": SIZES, "BN": SIZES, "BK": SIZES},
    rules={
        "more threads a block than the device allows": threads_fit,
        "more shared memory a block than the device allows": _shared_fits,
        "more than 2^31 - 1 blocks": grid_fits,
    },
)


def _default(problem: Problem, device: Device) -> Config:
    configs = [SPACE.config({"BM": size, "BN": size, "BK": size}) for size in (16, 8, 4)]
    return next((config for config in configs if SPACE.refusal(config, problem, device) is None), configs[-1])


TILED: Final = Kernel(
    name="tiled",
    summary="Tiles of A and B in shared memory, one thread for each element of C's tile.",
    file="tiled.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=_plan,
    default=_default,
)
