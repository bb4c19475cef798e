"""direct_tensor: short k on tensor cores, from memory straight into registers; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.instructions import mma
from kernels.kernel import Kernel, Plan
from kernels.naive import MAX_GRID
from kernels.problem import Problem
from kernels.space import Config, Space

# Rows and columns of one instruction, and the most of k that a tile has.
STRIP: Final = 16
BAND: Final = 8
DEEPEST: Final = 32
WARP: Final = 32
# mma with 16-bit elements of 16 along k, and bfloat16 (PTX ISA, "mma").
SINCE: Final = 80
# Warps of an SM that keep memory busy, and of a block.
BUSY: Final = 32
TOGETHER: Final = 4


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of all batches, each a warp's."""
    return problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return config["WARPS"] * WARP <= device.limits.threads


def _all_of_k(config: Config, problem: Problem, _: Device) -> bool:
    return problem.k <= config["BK"]


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] == STRIP or config["BK"] < 2 * problem.k


def _rows_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] == STRIP or config["BM"] < 2 * problem.m


def _columns_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BN"] == BAND or config["BN"] < 2 * problem.n


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) <= MAX_GRID


SPACE: Final = Space(
    parameters={"BM": (16, 32, 64), "BN": (8, 16, 32, 64), "BK": (16, 32), "WARPS": (1, 2, 4, 8)},
    rules={
        "half of a tile's rows or more past the edge": _rows_fill,
        "half of a tile's columns or more past the edge": _columns_fill,
        "more than 2^31 - 1 tiles": _counted,
        "less of k than there is": _all_of_k,
        "half of a tile's k or more past the end": _k_fills,
        "more threads a block than the device allows": _threads_fit,
    },
    reads={
        "half of a tile's rows or more past the edge": ("BM",),
        "half of a tile's columns or more past the edge": ("BN",),
        "more than 2^31 - 1 tiles": ("BM", "BN"),
        "less of k than there is": ("BK",),
        "half of a tile's k or more past the end": ("BK",),
        "more threads a block than the device allows": ("WARPS",),
    },
)


def _plan(config: Config, problem: Problem) -> Plan:
    count = tiles(config, problem)
    return Plan(-(-count // config["WARPS"]), (config["WARPS"] * WARP, 1), numbers=(count,))


def _default(problem: Problem, device: Device) -> Config:
    """All columns, as far as a tile has room, and as many rows as leave each SM enough warps."""
    found = list(SPACE.legal(problem, device))
    if not found:
        return next(iter(SPACE))
    widest = max(config["BN"] for config in found)
    warps = max(config["WARPS"] for config in found if config["WARPS"] <= TOGETHER)
    ways = [config for config in found if (config["BN"], config["WARPS"]) == (widest, warps)]
    highest = sorted(ways, key=lambda config: -config["BM"])
    return next((one for one in highest if tiles(one, problem) >= BUSY * device.limits.sms), highest[-1])


DIRECT_TENSOR: Final = Kernel(
    name="direct_tensor",
    summary="Short k: a warp has both operands of its tile in registers, straight from memory, and multiplies at once.",
    file="direct_tensor.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda",),
    plan=_plan,
    default=_default,
    since=lambda _: SINCE,
    suits=lambda problem: problem.k <= DEEPEST,
    shapes=f"k of at most {DEEPEST}",
    instructions=mma,
)
