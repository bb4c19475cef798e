"""direct_tensor: short k on tensor cores, from memory straight into registers; float16 and bfloat16."""

from __future__ import annotations

from typing import Final

from kernels.arithmetic import MMA
from kernels.device import Device
from kernels.direct_tensor.cost_model import seconds
from kernels.direct_tensor.plan import plan
from kernels.direct_tensor.space import OWN, SPACE
from kernels.kernel import Kernel, Sizes
from kernels.packing import ragged
from kernels.problem import Problem
from kernels.space import Config
from kernels.tensor_core import TENSOR_CORE
from kernels.tensor_core.cost_model import seconds as staged_seconds

DEEPEST: Final = 128
# mma with 16-bit elements of 16 along k, and bfloat16 (PTX ISA, "mma").
SINCE: Final = 80
SMALL: Final = 2**20  # elements of C
TOGETHER: Final = 4  # warps of a block
# A k that other kernels have no use for.
SHORT: Final = 32
SHORT_OF_BATCH: Final = 48  # of a batch with ragged rows
CLOSE: Final = 1.1  # how much longer than tensor_core's its estimate may be


def _default(problem: Problem, device: Device) -> Config:
    """The config of the least estimate, four warps of those that only WARPS tells apart; else the space's first one."""

    def order(config: Config) -> tuple[float, bool]:
        return seconds(config, problem, device), config["WARPS"] != TOGETHER

    return min(SPACE.legal(problem, device), key=order, default=next(iter(SPACE)))


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether k is short and C, if large, not stored by the element, and tensor_core is not far faster."""
    is_stored = problem.n % OWN == 0 or problem.batch * problem.m * problem.n <= SMALL
    if not is_stored or problem.k > (SHORT_OF_BATCH if problem.batch > 1 and ragged(problem) else SHORT):
        return False
    own = seconds(_default(problem, device), problem, device)
    return own <= CLOSE * staged_seconds(TENSOR_CORE.default(problem, device), problem, device)


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
    seconds=seconds,
    min_capability=SINCE,
    sizes=Sizes(k_most=DEEPEST),
    preferred_untuned=_preferred_untuned,
    whole_k=True,
    shapes=f"k of at most {DEEPEST}",
    instructions=MMA,
)
