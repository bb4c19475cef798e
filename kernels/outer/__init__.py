"""outer: a k of a few elements; C is stored in aligned vectors as it lies in memory, whatever its rows are."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Sizes
from kernels.outer.plan import block_elements, blocks, plan
from kernels.outer.space import DEPTHS, LEAST_BYTES, SPACE
from kernels.packing import HALF_BYTES
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, depth
from kernels.space import Config

DEEPEST: Final = DEPTHS[-1]
# Products up to which it is the fastest untuned choice for a k of more than one.
PRODUCTS: Final = 1_200_000
# And for one; a k up to which it is: in 16 bits, where direct_tensor, which multiplies by tensor cores, takes 0.75 to
# 0.9 of the time of three with a k of four, and 0.85 of 5878x2856x1 and 4521x5124x1 (H200; of 4509x1271x1 1.06).
PRODUCTS_OF_HALVES: Final = 8_000_000
DEEPEST_OF_HALVES: Final = 3
# cvt to a pair of bfloat16 came with sm_80 (PTX ISA, "cvt").
PAIRS_SINCE: Final = 80
# Threads of an SM that run at once, for the default.
AT_ONCE: Final = 1024
# Threads of a block of a small C's default: fewer where SMs have no block.
_BLOCKS: Final = (256, 128, 64)
# Those of a large one's, with its vectors, from so many times as many as run at once on; and elements of B that are
# read for a vector of 16 bytes at most.
_LARGE_BLOCK: Final = {"THREADS": 128, "PACKS": 2}
_LARGE: Final = 4
_READ: Final = 16


def _default(problem: Problem, device: Device) -> Config:
    """Of a small C the largest block of which each SM has one, else the smallest; of a large one two vectors a thread.

    Where all threads run at once what counts is how many loads one makes, which a vector of 8 bytes has half of; else
    what all of them make, which is less with 16 bytes, as long as a thread has few to make for each: on an H200 1.87 us
    against 2.33 for 4987x24x2 in float16, 12.4 against 9.3 for 989x3028x2 in float32, 7.2 against 8.3 for 437x7743x3
    in bfloat16.
    """
    depth = next((each for each in DEPTHS if each >= problem.k), DEEPEST)
    widest, least = VECTOR_BYTES // problem.itemsize, LEAST_BYTES // problem.itemsize
    times = problem.batch * problem.m * problem.n / max(1, AT_ONCE * device.limits.sms * least)
    vector = least if times <= 1 or widest > problem.n or depth * widest > _READ else widest
    own = {"BK": depth, "VECTOR": vector, "PACKS": 1}
    found = [Config.of(own | {"THREADS": threads}) for threads in _BLOCKS]
    if times > _LARGE:
        found.insert(0, Config.of(own | _LARGE_BLOCK))
    legal = [each for each in found if SPACE.refusal(each, problem, device) is None]
    if not legal:
        return SPACE.first_legal(problem, device)
    return next((each for each in legal if blocks(each, problem) >= device.limits.sms), legal[-1])


def _modelled(config: Config) -> Config:
    """A block's elements of C as a row: A is read once for each, B for each row."""
    return Config.of({"BM": 1, "BN": block_elements(config), "BK": config["BK"]})


def _preferred_untuned(problem: Problem, _: Device) -> bool:
    """Whether k is one, or C is small: operands come once for every vector of C, which a large one does not hide."""
    products = problem.batch * problem.m * problem.n * problem.k
    if problem.itemsize == HALF_BYTES:
        most = PRODUCTS_OF_HALVES if problem.k == 1 else PRODUCTS
        return problem.k <= DEEPEST_OF_HALVES and products <= most
    return problem.k == 1 or products <= PRODUCTS


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
