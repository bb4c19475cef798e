"""outer: a k of a few elements; C is stored in aligned vectors as it lies in memory, whatever its rows are."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Sizes
from kernels.outer.plan import block_elements, blocks, plan
from kernels.outer.space import DEPTHS, LEAST_BYTES, SPACE
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, depth
from kernels.space import Config

DEEPEST: Final = DEPTHS[-1]
# Products up to which it is the fastest untuned choice for a k of more than one.
PRODUCTS: Final = 1_200_000
# cvt to a pair of bfloat16 came with sm_80 (PTX ISA, "cvt").
PAIRS_SINCE: Final = 80
# Threads of an SM that run at once, for the default.
AT_ONCE: Final = 1024
# Threads of a block of the default: fewer where SMs have no block.
_BLOCKS: Final = (256, 128, 64)


def _default(problem: Problem, device: Device) -> Config:
    """The largest block of which each SM has one; else the smallest.

    Where all threads run at once what counts is how many loads one makes, which a vector of 8 bytes has half of; else
    what all of them make, which is less with 16 bytes: on an H200 1.87 us against 2.33 for 4987x24x2 in float16, and
    12.4 against 9.3 for 989x3028x2 in float32.
    """
    depth = next((each for each in DEPTHS if each >= problem.k), DEEPEST)
    widest, least = VECTOR_BYTES // problem.itemsize, LEAST_BYTES // problem.itemsize
    is_small = problem.batch * problem.m * problem.n <= AT_ONCE * device.limits.sms * least
    vector = least if is_small or widest > problem.n else widest
    found = [Config.of({"BK": depth, "VECTOR": vector, "PACKS": 1, "THREADS": threads}) for threads in _BLOCKS]
    legal = [each for each in found if SPACE.refusal(each, problem, device) is None]
    if not legal:
        return SPACE.first_legal(problem, device)
    return next((each for each in legal if blocks(each, problem) >= device.limits.sms), legal[-1])


def _modelled(config: Config) -> Config:
    """A block's elements of C as a row: A is read once for each, B for each row."""
    return Config.of({"BM": 1, "BN": block_elements(config), "BK": config["BK"]})


def _preferred_untuned(problem: Problem, _: Device) -> bool:
    """Whether k is one, or C is small: operands come once for every vector of C, which a large one does not hide."""
    return problem.k == 1 or problem.batch * problem.m * problem.n * problem.k <= PRODUCTS


OUTER: Final = Kernel(
    name="outer",
    summary="A k of a few elements: C in aligned vectors as it lies in memory, across the ends of its rows.",
    file="outer/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64", "float16", "bfloat16"),
    precisions=("strict", "tf32"),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    sizes=Sizes(k_most=DEEPEST),
    preferred_untuned=_preferred_untuned,
    min_capability=PAIRS_SINCE,
    most_k=depth,
    modelled=_modelled,
    shapes=f"k of at most {DEEPEST}",
)
