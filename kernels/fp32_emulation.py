"""Emulation of float32 on float16 tensor cores: the steps that split operands, and the operands that they decline.

A line, a row of op(A) or a column of op(B), is divided by a power of two so that its largest magnitude lies in [2^14,
2^15); then x = h + l / 2^11 with h = f16(x) and l = f16(2^11 (x - h)), and a product of lines is sum hh + (sum hl + sum
lh) / 2^11, of which the first sum leaves the tensor cores every PROMOTE_K k and is added up in float32 (Ootomo and
Yokota, Int. J. High Perform. Comput. Appl. 36-4, 2022). What follows shows that |error|_ij <= k U W, with U = 2^-23 and
W = (|A||B|)_ij, for every k >= LEAST_K that is at least four times PROMOTE_K, and for all operands that are not
declined. All quantities are those of scaled lines.

Sums. An instruction adds products of halves, which are exact, and an accumulator: blocks of 8 products at least with
the accumulator, each cut off at 2^-24 of the power of two that the largest one's exponents make, or finer, and the sum
cut off to 24 bits (sm_80 and later: Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7, 2021; Khattak and
Mikaitis, arXiv 2512.07004, 2025). Of 16 products that is at most 2 (9/2 + 1) U = 11 U of the sum of magnitudes so far.
PROMOTE_K of k lose 11/16 PROMOTE_K U W, and four times PROMOTE_K is at most k: sums of hh lose 0.172 k U W at most.
Float32 additions outside lose k / (2 PROMOTE_K) U W at most (Higham, Accuracy and Stability of Numerical Algorithms,
section 4.2). The crossed sums are 2^-10 W at most and lose 11/8 k U of that. The last addition rounds once more. All
that is under 0.19 k U W.

Elements. Where every element of a line is zero or at least 2^-14, and so normal as a half, |x - h| <= 2^-11 |x|, and
|x - h - l / 2^11| <= 2^-22 |x|: what halves do not hold costs 4 U W, the products ll that nobody adds cost 2 U W, and
the exponents of a product make a power of two that is not above the product. With k >= 256 all is under 0.22 k U W.

Else a few elements are too small for halves, as numbers of a normal distribution are now and then. They lose at most
2^-36 by what halves do not hold and 2^-25 2^4 by products ll, against operands of 2^15 at most: k 2^-19 in all, and the
exponents of a product make at most 2. But where of a row at most one element in 16 is under 4 in magnitude, and of a
column at most eleven in 16, or the other way round, k / 4 of their products are 16 or more: W >= 4 k, and the loss is
2^-21 W = 4 U W at most, the crossed sums 2^-9 W. So small elements are declined only where both lines may have many.
They are counted in parts of 256 to 511 of k, and of an operand the worst part of its worst line counts. Of N(0,1)
operands of 16384 x 16384 the chance that any part has more than one in 16 under 2^-12 of the line's largest is below
10^-19: they are practically never declined.

Range. Sums are multiples of 2^-59 and below 2^30 k. The exponents of any row and any column together are at least -90,
so that scaling back is exact, for subnormal results too, and at most 97 - ceil(log2 k), so that nothing overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kernels.launch import COUNTERS, Build, Step
from kernels.problem import Problem, larger
from kernels.rules import LINE_BYTES
from kernels.sources import source

FILES: Final = ("steps/row_absmax.cu", "steps/split_fp16.cu")
# The least k that is served, and how much of k sums of products of high halves may stay in the tensor cores: four times
# as much must not exceed k. With these the relative L2 error of N(0,1) operands is below that of sequential FMAs.
LEAST_K: Final = 256
PROMOTIONS: Final = (64, 128, 256)
SHARE: Final = 4
# As in steps/row_scale.h and steps/split_fp16.cu: the lines and threads of a block, the elements of k that a block
# splits, and to what a line's halves are filled up.
SIDE: Final = 64
THREADS: Final = 256
SPAN: Final = 256
# Parts of k in which the greatest magnitudes are looked for: what steps/split_fp16.cu reads of each is little beside
# the operand.
MOST_SLABS: Final = 64
LEAST_SLAB: Final = 256
VERDICT_AT: Final = 4 * COUNTERS
REASONS: Final = {
    1: "an operand has NaN or infinity",
    2: "the magnitudes of rows and columns together leave the range in which scaling is exact",
    4: "an operand has elements too small beside the largest of their row or column",
}


@dataclass(frozen=True, slots=True)
class SplitOperands:
    """The float16 terms of A and B in the workspace, and the steps that write them, on a launch's first `scalars`.

    All places are in lines of 128 bytes; `end` is the first past all of them. From `at_a` on there are, for each batch
    and row of op(A), first the high and then the low halves along k, each filled up with zeros to `row` lines; from
    `at_b` on the columns of op(B). From `at_e` on there is a 32-bit integer for each batch and row, from `at_f` on for
    each batch and column: their exponents. `verdict_at` is a plan's.
    """

    at_a: int
    at_b: int
    at_e: int
    at_f: int
    at_maxima: int
    slab: int
    row: int
    end: int
    before: tuple[Step, ...]
    verdict_at: int = VERDICT_AT

    @property
    def scalars(self) -> tuple[int, ...]:
        """The first numbers of a launch that has these steps before it."""
        return self.at_a, self.at_b, self.at_e, self.at_f, self.at_maxima, self.slab


def split_operands(problem: Problem) -> SplitOperands:
    """The split operands of a problem, behind the counters and the verdict in the workspace."""
    rows, columns = problem.batch * problem.m, problem.batch * problem.n
    row, slab = -(-problem.k // SIDE), slab_of(problem.k)
    slabs = -(-problem.k // slab)
    at_a = VERDICT_AT // LINE_BYTES + 1
    at_b = at_a + 2 * row * rows
    at_e = at_b + 2 * row * columns
    at_f = at_e + _words(rows)
    at_maxima = at_f + _words(columns)
    end = at_maxima + _words((rows + columns) * slabs)
    return SplitOperands(at_a, at_b, at_e, at_f, at_maxima, slab, row, end, _steps(problem, slabs))


def slab_of(k: int) -> int:
    """How much of k a block of the survey looks at: a multiple of 64."""
    return larger(LEAST_SLAB, -(-k // (MOST_SLABS * SIDE)) * SIDE)


def reason(verdict: int) -> str:
    """Say why a product was declined."""
    found = [words for bit, words in REASONS.items() if verdict & bit]
    return "; ".join(found) or f"the kernel declined it ({verdict})"


def least_k(config: Mapping[str, int]) -> int:
    """The least k for which a config's PROMOTE_K keeps the error below that of sequential FMAs."""
    return max(LEAST_K, SHARE * config.get("PROMOTE_K", 1))


def _steps(problem: Problem, slabs: int) -> tuple[Step, ...]:
    blocks = problem.batch * (-(-problem.m // SIDE) + -(-problem.n // SIDE))
    row_absmax, split = (
        _build(problem, file, entry) for file, entry in zip(FILES, ("row_absmax", "split_fp16"), strict=True)
    )
    parts = larger(1, problem.k // SPAN)
    return Step(row_absmax, blocks * slabs, (THREADS, 1)), Step(split, blocks * parts, (THREADS, 1))


def _build(problem: Problem, file: str, entry: str) -> Build:
    macros = (
        ("DTYPE_FLOAT32", "1"),
        ("TRANS_A", str(int(problem.trans_a))),
        ("TRANS_B", str(int(problem.trans_b))),
    )
    return Build(entry, source(file), entry, macros)


def _words(count: int) -> int:
    return -(-4 * count // LINE_BYTES)
