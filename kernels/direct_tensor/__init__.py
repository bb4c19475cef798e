"""direct_tensor: short k, or small C, on tensor cores, from memory straight into registers; 16 bits and TF32."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.arithmetic import MMA
from kernels.device import Device
from kernels.direct_tensor.cost_model import seconds
from kernels.direct_tensor.plan import plan
from kernels.direct_tensor.space import MOST_TILES, SPACE, most_k
from kernels.hopper import HOPPER
from kernels.hopper import untuned_seconds as hopper_seconds
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.residuals import least
from kernels.space import Config
from kernels.tensor_core import TENSOR_CORE
from kernels.tensor_core.cost_model import seconds as staged_seconds

# The most of k that a warp has, and bytes of a line of which the warps of a block, or of a cluster's blocks, have
# slices.
DEEPEST: Final = 128
DEEPEST_BYTES: Final = 32768
# mma with 16-bit elements of 16 along k, with bfloat16 and with TF32 (PTX ISA, "mma").
SINCE: Final = 80
# The most warps of a block whose k is not sliced: on an H200 eight are 5 to 23 % slower than two or four.
TOGETHER: Final = 4
# An estimate up to which hopper is not the faster one, in seconds.
SHORT_SECONDS: Final = 3.3e-6


@lru_cache(1024)
def _default(problem: Problem, device: Device) -> Config:
    """As corrected, the least estimate's, of unsliced configs of at most TOGETHER warps; else the space's first one."""
    legal = (each for each in SPACE.legal(problem, device) if each["SLICE_K"] > 1 or each["WARPS"] <= TOGETHER)
    return next(iter(least(DIRECT_TENSOR, legal, problem, device)), next(iter(SPACE)))


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether neither tensor_core nor hopper, where that would be taken, is estimated to be the faster one."""
    own = untuned_seconds(problem, device)
    if own > staged_seconds(TENSOR_CORE.default(problem, device), problem, device):
        return False
    if own <= SHORT_SECONDS or not HOPPER.covers(problem, device):
        return True
    return own <= hopper_seconds(problem, device) or not HOPPER.preferred_untuned(problem, device)


def untuned_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of the default."""
    return seconds(_default(problem, device), problem, device)


DIRECT_TENSOR: Final = Kernel(
    name="direct_tensor",
    summary="Short k or small C: warps have all of their operands in registers, straight from memory, and multiply.",
    file="direct_tensor/kernel.cu",
    space=SPACE,
    dtypes=("float16", "bfloat16", "float32"),
    precisions=("strict", "tf32"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    excluded_classes=(("float32", "strict"),),
    min_capability=SINCE,
    sizes=Sizes(k_bytes_most=DEEPEST_BYTES, deep_over=DEEPEST, deep_squares_most=MOST_TILES),
    preferred_untuned=_preferred_untuned,
    most_k=most_k,
    shapes=f"k of at most {DEEPEST}, and a small C with lines of at most {DEEPEST_BYTES} bytes along k",
    instructions=MMA,
)
