"""rank_k: a short k between sides of any length; all of it is brought at once, without a pipeline."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kernels.batched import BATCHED
from kernels.device import Device
from kernels.direct_double import DIRECT_DOUBLE
from kernels.direct_double import untuned_seconds as direct_double_seconds
from kernels.direct_tensor import DIRECT_TENSOR
from kernels.direct_tensor import untuned_seconds as direct_seconds
from kernels.double_hopper import least_seconds as tiled_seconds
from kernels.double_tensor import DOUBLE_TENSOR
from kernels.kernel import Kernel, Sizes
from kernels.pipelined import PIPELINED
from kernels.pipelined import untuned_seconds as pipelined_seconds
from kernels.problem import Problem
from kernels.rank_k.cost_model import seconds
from kernels.rank_k.plan import plan
from kernels.rank_k.space import DEPTHS, SPACE, widest_run
from kernels.register_tiled import untuned_seconds as register_tiled_seconds
from kernels.residuals import ranked
from kernels.rules import FLOAT_BYTES, VECTOR_BYTES, depth, real_bytes
from kernels.space import Config
from kernels.tall import TALL

# The most of k that it is for, and the most of which it is the best untuned choice, but of float32, by estimates.
DEEPEST: Final = DEPTHS[-1]
SHORT: Final = 32
LARGE: Final = 800_000
# How much longer than double_tensor's and double_hopper's its estimate may be; and than pipelined's and
# register_tiled's, where k is short or not.
CLOSE: Final = 1.1
CLOSE_SHORT: Final = 1.25
CLOSE_LONG: Final = 1.05
# How many times its estimate direct_tensor's is to be at least.
SURELY: Final = 1.05
# Elements of a C that a batch has many of, of which a tile would be mostly past the edge, unless a side is longer.
SMALL: Final = 128 * 128
LONG_SIDE: Final = 128
# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
# From this k on there is enough to multiply for larger tiles to pay.
DEEP: Final = 32
# What defaults are chosen from, largest first: BM, BN, TM, TN and LANES_N, where C's rows are aligned to 16 bytes of
# float32, and where a warp stores single elements, which are to lie side by side.
_ALIGNED: Final = (
    (64, 128, 16, 4, 16),
    (32, 128, 16, 4, 16),
    (64, 64, 8, 4, 16),
    (128, 32, 8, 4, 8),
    (32, 64, 8, 4, 16),
    (64, 32, 4, 4, 8),
    (32, 32, 4, 4, 8),
)
_RAGGED: Final = (
    (64, 128, 8, 4, 16),
    (32, 128, 8, 4, 32),
    (64, 64, 8, 2, 32),
    (32, 64, 8, 2, 32),
    (64, 32, 8, 2, 16),
    (32, 32, 4, 2, 16),
)
_LARGEST: Final = 64 * 128


@lru_cache(1024)
def _default(problem: Problem, device: Device) -> Config:
    """Of what defaults are chosen from, the legal config of the least corrected estimate."""
    legal = [each for each in _configs(problem) if SPACE.refusal(each, problem, device) is None]
    least = sorted(legal, key=lambda each: seconds(each, problem, device))
    found = ranked(RANK_K, least, problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


def _configs(problem: Problem) -> list[Config]:
    together = widest_run(4, problem) * real_bytes(problem) == VECTOR_BYTES
    rows = _ALIGNED if together else _RAGGED
    enough = next((each for each in DEPTHS if each >= problem.k), DEEPEST)
    found = []
    for bm, bn, tm, tn, lanes in rows:
        run = widest_run(tn, problem) if together else 1
        tile = {"BM": bm, "BN": bn, "BK": enough, "TM": tm, "TN": tn, "LANES_N": lanes, "RUN_N": run, "MIN_BLOCKS": 1}
        if problem.k >= DEEP or bm * bn < _LARGEST:
            found.append(Config.of(tile))
    return found


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether k is short, and writing C takes most of the time; where tensor cores multiply, by estimates."""
    if DIRECT_TENSOR.covers(problem, device):
        return problem.k <= SHORT and SURELY * _untuned_seconds(problem, device) <= direct_seconds(problem, device)
    is_bound_by_c = problem.k <= SHORT and _fills_tiles(problem)
    if problem.itemsize == FLOAT_BYTES and not (is_bound_by_c and problem.m * problem.n <= LARGE):
        return _is_fastest_of_float32(problem, device)
    if not is_bound_by_c:
        return False
    own = _untuned_seconds(problem, device)
    if DIRECT_DOUBLE.covers(problem, device) and own > direct_double_seconds(problem, device):
        return False
    if not DOUBLE_TENSOR.covers(problem, device):
        return True
    return own <= CLOSE * tiled_seconds(problem, device)


def _is_fastest_of_float32(problem: Problem, device: Device) -> bool:
    """Whether it is for neither the longest C (tall) nor many small ones (batched), and pipelined is no faster.

    Of 131072x64x64 and 262144x16x32 tall takes 0.82 and 0.69 of the time on an H200.
    """
    if any(each.covers(problem, device) and each.preferred_untuned(problem, device) for each in (TALL, BATCHED)):
        return False
    if not PIPELINED.covers(problem, device):
        return problem.k <= SHORT
    other = min(pipelined_seconds(problem, device), register_tiled_seconds(problem, device))
    return _untuned_seconds(problem, device) <= (CLOSE_SHORT if problem.k <= SHORT else CLOSE_LONG) * other


def _untuned_seconds(problem: Problem, device: Device) -> float:
    return seconds(_default(problem, device), problem, device)


def _fills_tiles(problem: Problem) -> bool:
    return problem.batch == 1 or problem.m * problem.n > SMALL or max(problem.m, problem.n) > LONG_SIDE


RANK_K: Final = Kernel(
    name="rank_k",
    summary="Short k: a block brings all of it at once, multiplies, and writes its tile while others load.",
    file="rank_k/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    dynamic_smem=True,
    min_capability=COPIES_SINCE,
    sizes=Sizes(k_most=DEEPEST),
    preferred_untuned=_preferred_untuned,
    most_k=depth,
    shapes=f"k of at most {DEEPEST}",
)
