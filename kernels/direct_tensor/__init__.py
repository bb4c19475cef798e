"""direct_tensor: short k on tensor cores, from memory straight into registers; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import MMA
from kernels.device import Device
from kernels.direct_tensor.plan import plan, tiles
from kernels.direct_tensor.space import BAND, MOST_OWN, OWN, SPACE
from kernels.kernel import Kernel, Sizes
from kernels.packing import ragged
from kernels.problem import Problem
from kernels.space import Config

DEEPEST: Final = 128
# mma with 16-bit elements of 16 along k, and bfloat16 (PTX ISA, "mma").
SINCE: Final = 80
# Warps of an SM that keep memory busy, those that are too few, and warps of a block.
BUSY: Final = 32
FEW: Final = 8
TOGETHER: Final = 4
SMALL: Final = 2**20  # elements of C
# Columns of a tile whose rows are not stored 16 bytes at once; and a k that other kernels have no use for.
NARROW: Final = 16
SHORT: Final = 32
SHORT_OF_BATCH: Final = 48  # of a batch with ragged rows


def _default(problem: Problem, device: Device) -> Config:
    """As many columns as a tile has room for, and rows, as leave each SM enough warps; else the smallest tile."""
    found = list(SPACE.legal(problem, device))
    if not found:
        return next(iter(SPACE))
    warps = max(config["WARPS"] for config in found if config["WARPS"] <= TOGETHER)
    depth, sms = min(config["BK"] for config in found), device.limits.sms
    ways = [
        config for config in found if (config["BK"], config["WARPS"]) == (depth, warps) and _stores(config, problem)
    ]
    for widest in sorted({config["BN"] for config in ways}, reverse=True):
        highest = sorted((one for one in ways if one["BN"] == widest), key=lambda one: -one["BM"])
        busy = next((one for one in highest if tiles(one, problem) >= BUSY * sms), highest[-1])
        if tiles(busy, problem) >= FEW * sms:
            return busy
    return min(ways, key=lambda one: one["BM"] * one["BN"])


def _stores(config: Config, problem: Problem) -> bool:
    """Whether a thread's columns are those that suit C's rows: 16 bytes, or of one instruction where they are odd."""
    most = min(MOST_OWN, config["BN"] // BAND * OWN)
    if problem.n % most == 0:
        return config["TN"] == most
    return config["TN"] == OWN and config["BN"] <= NARROW


def _preferred_untuned(problem: Problem, _: Device) -> bool:
    """Whether k is short and C, if large, not stored by the element."""
    is_stored = problem.n % OWN == 0 or problem.batch * problem.m * problem.n <= SMALL
    return is_stored and problem.k <= (SHORT_OF_BATCH if problem.batch > 1 and ragged(problem) else SHORT)


DIRECT_TENSOR: Final = Kernel(
    name="direct_tensor",
    summary="Short k: a warp has both operands of its tile in registers, straight from memory, and multiplies at once.",
    file="direct_tensor/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    min_capability=SINCE,
    sizes=Sizes(k_most=DEEPEST),
    preferred_untuned=_preferred_untuned,
    whole_k=True,
    shapes=f"k of at most {DEEPEST}",
    instructions=MMA,
)
