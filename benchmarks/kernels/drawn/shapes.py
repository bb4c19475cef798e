"""The distributions that shapes are drawn from, and the rows of the table that its ratios are told in.

A shape is decided by the seed, its row and its number in the row alone, so that a run may be cut into pieces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from benchmarks.kernels.drawn.models import MODELS
from kernels.problem import Problem

# Elements of A, B and C together: the host makes them, and compares each product with its reference in float64.
MOST_ELEMENTS: Final = 2**28
ROWS_OF_LAYERS: Final = (1, 8192)
SIDES: Final = (4, 16384)
PRODUCTS: Final = (2e6, 4e11)  # m n k, both excluded
THIN: Final = (1, 64)
OTHERS: Final = (65, 16384)  # the sides that are not thin
THIN_K: Final = (1, 256)
BATCHES: Final = (2, 512)
BATCHED: Final = (8, 1024)
Class = tuple[str, str]  # dtype and precision
HALVES: Final[tuple[Class, ...]] = (("bfloat16", "strict"), ("float16", "strict"))
SINGLE: Final[Class] = ("float32", "strict")
TF32: Final[Class] = ("float32", "tf32")
DOUBLE: Final[Class] = ("float64", "strict")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A shape: its row, its number there, and the layer that it is of, if it is one."""

    row: str
    number: int
    problem: Problem
    layer: str | None = None


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row of the table: the geometric mean that its ratios are to reach, and how a shape of it is drawn."""

    name: str
    bar: float
    draw: Callable[[random.Random], tuple[Problem, str | None]]


def log_uniform(dice: random.Random, bounds: tuple[int, int]) -> int:
    """An integer within bounds, both included, whose logarithm is uniform."""
    low, high = bounds
    return min(high, max(low, int(exp(dice.uniform(log(low), log(high + 1))))))


def _stored(dice: random.Random) -> tuple[bool, bool]:
    return dice.random() < 0.5, dice.random() < 0.5


def _problem(dice: random.Random, sizes: Sequence[int], classes: Sequence[Class], batch: int = 1) -> Problem:
    m, n, k = sizes
    return Problem(m, n, k, batch, *dice.choice(classes), *_stored(dice))


def layer(dice: random.Random) -> tuple[Problem, str | None]:
    """A layer of a model on so many rows, its weights stored as they are: n x k."""
    one = dice.choice(dice.choice(MODELS).layers)
    rows = log_uniform(dice, ROWS_OF_LAYERS)
    return Problem(rows, one.outputs, one.inputs, 1, *dice.choice(HALVES), trans_b=True), f"{one.model}, {one.name}"


def sized(*classes: Class) -> Callable[[random.Random], tuple[Problem, str | None]]:
    """Any sizes, stored any way."""

    def draw(dice: random.Random) -> tuple[Problem, str | None]:
        while True:
            found = _problem(dice, [log_uniform(dice, SIDES) for _ in "mnk"], classes)
            if PRODUCTS[0] < found.m * found.n * found.k < PRODUCTS[1]:
                return found, None

    return draw


def thin(*classes: Class) -> Callable[[random.Random], tuple[Problem, str | None]]:
    """Few rows, few columns, or few of both."""

    def draw(dice: random.Random) -> tuple[Problem, str | None]:
        few = dice.choice(("m", "n", "mn"))
        return _problem(dice, [log_uniform(dice, THIN if name in few else OTHERS) for name in "mnk"], classes), None

    return draw


def thin_k(dice: random.Random) -> tuple[Problem, str | None]:
    """A short k between any sides."""
    sizes = log_uniform(dice, SIDES), log_uniform(dice, SIDES), log_uniform(dice, THIN_K)
    return _problem(dice, sizes, (SINGLE, TF32, *HALVES)), None


def batched(dice: random.Random) -> tuple[Problem, str | None]:
    """A batch of small products."""
    sizes = [log_uniform(dice, BATCHED) for _ in "mnk"]
    return _problem(dice, sizes, (SINGLE, TF32, *HALVES), log_uniform(dice, BATCHES)), None


ROWS: Final = (
    DrawnRow("layers, 16 bits", 1.05, layer),
    DrawnRow("any, float32", 1.15, sized(SINGLE)),
    DrawnRow("any, TF32", 1.15, sized(TF32)),
    DrawnRow("any, bfloat16", 1.3, sized(HALVES[0])),
    DrawnRow("any, float16", 1.3, sized(HALVES[1])),
    DrawnRow("any, float64", 1.0, sized(DOUBLE)),
    DrawnRow("thin sides, float32", 1.4, thin(SINGLE)),
    DrawnRow("thin sides, 16 bits", 1.15, thin(*HALVES)),
    DrawnRow("thin k", 1.2, thin_k),
    DrawnRow("batches", 1.2, batched),
)
BY_NAME: Final[Mapping[str, DrawnRow]] = {row.name: row for row in ROWS}


def elements(problem: Problem) -> int:
    """Elements of A, B and C."""
    return problem.bytes // problem.itemsize


def drawn(seed: int, row: DrawnRow, number: int) -> Drawn:
    """One shape; what has more elements than fit is drawn anew."""
    dice = random.Random(f"{seed}/{row.name}/{number}")  # noqa: S311  shapes, no secrets
    while True:
        problem, of = row.draw(dice)
        if elements(problem) <= MOST_ELEMENTS:
            return Drawn(row.name, number, problem, of)


def shapes(seed: int, names: Sequence[str], each: int) -> list[Drawn]:
    """So many shapes of every row, one of each in turn, so that a run that is stopped has them evenly."""
    return [drawn(seed, BY_NAME[name], number) for number in range(each) for name in names]
