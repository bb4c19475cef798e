"""gemv: C with a side of a few elements; both operands go straight into registers, and threads share k."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.device import Device
from kernels.direct_double import DIRECT_DOUBLE
from kernels.direct_double import untuned_seconds as direct_double_seconds
from kernels.direct_tensor import DIRECT_TENSOR
from kernels.direct_tensor import untuned_seconds as direct_seconds
from kernels.gemv.cost_model import seconds
from kernels.gemv.plan import SHORT_SIDES, plan
from kernels.gemv.space import SPACE
from kernels.hopper import HOPPER
from kernels.hopper import untuned_seconds as hopper_seconds
from kernels.kernel import Kernel, Sizes
from kernels.packing import A, B, ragged
from kernels.problem import Problem
from kernels.residuals import least
from kernels.skinny import SKINNY
from kernels.skinny.cost_model import seconds as skinny_seconds
from kernels.space import Config

# What memory is read with the long operand, each element of C's short side counted anew, up to which it is the fastest
# untuned choice but for kernels without a pipeline; a C of so few rows or columns is read as fast whatever its length.
READ_BYTES: Final = 40 * 10**6
FEWEST: Final = 2
# What its estimate may be of skinny's, of hopper's where much is read, and of direct_tensor's.
CLOSE: Final = 1.25
FAR: Final = 0.75
CLOSER: Final = 0.85


@lru_cache(1024)
def _default(problem: Problem, device: Device) -> Config:
    """The legal config of the least corrected estimate, or the space's first, which `launch` refuses."""
    return next(iter(least(GEMV, SPACE.legal(problem, device), problem, device)), next(iter(SPACE)))


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether C has so few rows or columns that instructions do not count; or by estimates.

    Where much is read, skinny reads the long operand's rows by the element, too, if these are ragged.
    """
    short, long = min(problem.m, problem.n), max(problem.m, problem.n)
    if short <= FEWEST:
        return True
    own = seconds(_default(problem, device), problem, device)
    if DIRECT_DOUBLE.covers(problem, device):
        return own <= direct_double_seconds(problem, device)
    if DIRECT_TENSOR.covers(problem, device) and own > CLOSER * direct_seconds(problem, device):
        return False
    if problem.batch * problem.k * long * problem.itemsize * short <= READ_BYTES:
        return True
    return _reads_most_as_fast(own, problem, device)


def _reads_most_as_fast(own: float, problem: Problem, device: Device) -> bool:
    """Whether what reads much takes its own seconds, no more than hopper or else skinny is estimated to take."""
    if HOPPER.covers(problem, device):
        return own <= FAR * hopper_seconds(problem, device)
    across = ragged(problem) & (A if problem.m >= problem.n else B)
    return across > 0 and own <= CLOSE * skinny_seconds(SKINNY.default(problem, device), problem, device)


GEMV: Final = Kernel(
    name="gemv",
    summary="C with a side of a few elements: both operands straight into registers, k shared out among threads.",
    file="gemv/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    dynamic_smem=True,
    sizes=Sizes(short_most=SHORT_SIDES[-1]),
    preferred_untuned=_preferred_untuned,
    shapes=f"a C with a side of at most {SHORT_SIDES[-1]}",
)
