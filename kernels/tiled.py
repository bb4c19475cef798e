"""tiled: tiles of A and B in shared memory, one thread for each element of C's tile."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Plan
from kernels.model import lightest
from kernels.naive import blocks, grid_fits, threads_fit
from kernels.problem import Problem
from kernels.space import Config, Space

SIZES: Final = (4, 8, 16, 32, 64)
BANK_BYTES: Final = 128
VECTOR_BYTES: Final = 16
FLOAT_BYTES: Final = 4
HALF_BYTES: Final = 2
MOST_THREADS: Final = 1024


def element_bytes(problem: Problem) -> int:
    """Bytes of an element in a shared tile, where those of 16 bits are floats."""
    return max(problem.itemsize, FLOAT_BYTES)


def strides(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements from one row to the next of A's and of B's shared tile, as STRIDE_A and STRIDE_B of tiled.cu."""
    bn, bk = config["BN"], config["BK"]
    lanes, vector = BANK_BYTES // element_bytes(problem), VECTOR_BYTES // element_bytes(problem)
    pads_a = bk > vector and (problem.trans_a or bk > bn)
    pads_b = problem.trans_b and bn * bk > lanes
    return bk + pads_a * vector, bn + pads_b * max(lanes // bk, 1)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both shared tiles with their padding."""
    stride_a, stride_b = strides(config, problem)
    return (config["BM"] * stride_a + config["BK"] * stride_b) * element_bytes(problem)


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes


def _halves_fit(config: Config, problem: Problem, device: Device) -> bool:
    """Two blocks of 1,024 threads on an SM is what ptxas goes for where it can: some spill then (seen for sm_100)."""
    threads, phase = config["BM"] * config["BN"], config["BK"]
    return device.platform != "cuda" or problem.itemsize > HALF_BYTES or (threads, phase) != (MOST_THREADS, SIZES[-1])


def _plan(config: Config, problem: Problem) -> Plan:
    return Plan(blocks(config, problem), (config["BN"], config["BM"]), shared_bytes(config, problem))


SPACE: Final = Space(
    parameters={"BM": SIZES, "BN": SIZES, "BK": SIZES},
    rules={
        "more threads a block than the device allows": threads_fit,
        "more shared memory a block than the device allows": _shared_fits,
        "more than 2^31 - 1 blocks": grid_fits,
        "phases of halves that take more registers than 1,024 threads have": _halves_fit,
    },
)


# What defaults are chosen from, largest first: a GPU wants deep phases, which hide its latency; a processor wants the
# threads' sums and both tiles in its first cache.
TILES: Final = {
    "cuda": ((32, 32), (16, 32), (16, 16), (8, 32), (8, 8), (4, 32), (4, 8), (4, 4)),
    "opencl": ((16, 16), (8, 16), (4, 32), (4, 16), (4, 8), (4, 4)),
}
DEPTHS: Final = {"cuda": (64, 32, 8), "opencl": (16, 8)}


def _default(problem: Problem, device: Device) -> Config:
    shapes = [{"BM": bm, "BN": bn, "BK": bk} for bm, bn in TILES[device.platform] for bk in DEPTHS[device.platform]]
    return lightest(SPACE, shapes, problem, device)


TILED: Final = Kernel(
    name="tiled",
    summary="Tiles of A and B in shared memory, one thread for each element of C's tile.",
    file="tiled.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda", "opencl"),
    plan=_plan,
    default=_default,
)
