"""direct_tensor: short k on tensor cores, from memory straight into registers; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import mma
from kernels.device import Device
from kernels.direct_tensor.plan import plan, tiles
from kernels.direct_tensor.space import SPACE
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config

DEEPEST: Final = 32
# mma with 16-bit elements of 16 along k, and bfloat16 (PTX ISA, "mma").
SINCE: Final = 80
# Warps of an SM that keep memory busy, and of a block.
BUSY: Final = 32
TOGETHER: Final = 4


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
    file="direct_tensor/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16"),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    min_capability=lambda _: SINCE,
    supports=lambda problem: problem.k <= DEEPEST,
    shapes=f"k of at most {DEEPEST}",
    instructions=mma,
)
