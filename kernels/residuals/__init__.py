"""What kernels' cost models miss, learnt from times: a smooth function and regression trees correct an estimate.

Both are sums that are added to its logarithm. They are fitted to the logarithms of what configs of drawn problems took
on an H200 over the models' estimates, by benchmarks.kernels.residuals, which makes sm_90.json.gz: the function, of
Gaussians around some of the configs, by kernel ridge regression on these (C. Williams, M. Seeger, "Using the Nystroem
method to speed up kernel machines", NIPS 2000); the trees to what it leaves, by stochastic gradient boosting
(J. Friedman, "Stochastic gradient boosting", Computational Statistics & Data Analysis 38, 2002). Times are smooth in
sizes, which the function fits with few numbers, but for steps, of tiles and alignment, which trees fit.

Nothing is said of other architectures and numbers of SMs, of classes of problems that were not drawn, and of problems
with more operations: there the model's estimate stands. An H100 of as many SMs is corrected, too, by an H200's times.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from importlib.resources import files
from math import dist, exp, gcd, log2
from typing import Any, Final, TypeAlias, TypeVar

from kernels.device import Device
from kernels.features import features, predicted
from kernels.kernel import Kernel
from kernels.problem import PRECISIONS, Problem
from kernels.space import Config

ARCHITECTURE: Final = "sm_90"
SMS: Final = 132
FILE: Final = f"residuals/{ARCHITECTURE}.json.gz"
# Of a model's least estimates, those among which the corrected ones choose: of others too few times are known.
CANDIDATES: Final = 24
# What a choice by models and rules counts of its corrected estimate, whose error is larger than this; and where few
# problems with as many operations are known, since corrections extrapolate there: in float32 6144 cubed would get tiles
# of 32 x 128.
FIRST: Final = 0.97
FIRST_OF_FEW: Final = 0.94
ALIGNED: Final = 64  # bytes: rows that are multiples of more are read no faster
FARTHEST: Final = 4.0  # standard deviations from the mean: what lies farther counts as this

Choice = TypeVar("Choice")
# A leaf, or a feature's number, a threshold, and the trees of rows at or below it and above.
Tree: TypeAlias = float | list[Any]


@dataclass(frozen=True, slots=True)
class Residuals:
    """Of one kernel: what corrects its estimates, and the classes of problems that it was fitted to.

    None of these had more operations than `most_flops`, and few more than `few_flops`. Points are in standard
    deviations from the means; the logarithm of a Gaussian falls by `decay` times the square of the distance from its
    own.
    """

    classes: frozenset[tuple[str, str]]
    most_flops: int
    few_flops: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    decay: float
    points: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    bias: float
    trees: tuple[Tree, ...]

    def knows(self, problem: Problem) -> bool:
        """Whether the problem is among such as it was fitted to."""
        return (problem.dtype, problem.precision) in self.classes and problem.flops <= self.most_flops

    def first(self, problem: Problem) -> float:
        """What a choice by models and rules counts of its corrected estimate."""
        return FIRST_OF_FEW if problem.flops > self.few_flops else FIRST

    def sum(self, row: tuple[float, ...]) -> float:
        """The natural logarithm of the time over the estimate, of a config's row of features."""
        at = standard(row, self.means, self.deviations)
        smooth = sum(
            weight * exp(-self.decay * dist(at, point) ** 2)
            for weight, point in zip(self.weights, self.points, strict=True)
        )
        return self.bias + smooth + sum(_leaf(tree, row) for tree in self.trees)


def standard(row: Sequence[float], means: Sequence[float], deviations: Sequence[float]) -> tuple[float, ...]:
    """A row in standard deviations from the means."""
    far = ((value - mean) / deviation for value, mean, deviation in zip(row, means, deviations, strict=True))
    return tuple(min(max(each, -FARTHEST), FARTHEST) for each in far)


def _leaf(tree: Tree, row: tuple[float, ...]) -> float:
    while isinstance(tree, list):
        feature, threshold, below, above = tree
        tree = below if row[feature] <= threshold else above
    return tree


@cache
def _tables() -> Mapping[str, Residuals]:
    """By kernel."""
    return of_text(gzip.decompress(files("kernels").joinpath(FILE).read_bytes()).decode())


def of_text(text: str) -> Mapping[str, Residuals]:
    """By kernel, of a file's text; equal numbers are one object, as points have few that differ."""
    content = json.loads(text, parse_float=cache(float))
    return {name: _read(one) for name, one in content["kernels"].items()}


def _read(one: dict[str, Any]) -> Residuals:
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in one.items()}
    nested = {"classes": frozenset(map(tuple, one["classes"])), "points": tuple(map(tuple, one["points"]))}
    return Residuals(**own | nested)


def residuals(kernel: Kernel, problem: Problem, device: Device) -> Residuals | None:
    """What was learnt of the kernel on such problems and devices; None for nothing."""
    if device.architecture != ARCHITECTURE or device.limits.sms != SMS:
        return None
    table = _tables().get(kernel.name)
    return table if table is not None and table.knows(problem) else None


def row(kernel: Kernel, config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """What is read of a legal config: a search's features, the estimate's logarithm first, and its problem's own."""
    return (*features(kernel, config, problem, device), *_problem(problem))


def _problem(problem: Problem) -> tuple[float, ...]:
    row_a = problem.m if problem.trans_a else problem.k
    row_b = problem.k if problem.trans_b else problem.n
    return (
        *(log2(size) for size in (problem.m, problem.n, problem.k, problem.batch)),
        problem.itemsize,
        problem.dtype == "bfloat16",
        PRECISIONS.index(problem.precision),
        problem.trans_a,
        problem.trans_b,
        *(log2(gcd(size * problem.itemsize, ALIGNED)) for size in (row_a, row_b, problem.n)),
    )


def corrected_seconds(kernel: Kernel, config: Config, problem: Problem, device: Device) -> float:
    """Seconds of a legal config's launch: the estimate of the kernel's model, times what that misses."""
    learnt = residuals(kernel, problem, device)
    if learnt is None:
        return float(2 ** predicted(kernel, config, problem, device))
    figures = row(kernel, config, problem, device)
    return float(2 ** figures[0] * exp(learnt.sum(figures)))


def ranked(kernel: Kernel, candidates: Sequence[Config], problem: Problem, device: Device) -> tuple[Config, ...]:
    """A model's candidates by their corrected estimates, of which its first one's counts less than it is."""
    learnt = residuals(kernel, problem, device)
    if learnt is None:
        return tuple(candidates)
    corrected = [corrected_seconds(kernel, config, problem, device) for config in candidates]
    return tuple(by_corrected(candidates, corrected, learnt.first(problem)))


def least(kernel: Kernel, legal: Iterable[Config], problem: Problem, device: Device) -> tuple[Config, ...]:
    """Of legal configs CANDIDATES with the least estimates, by their corrected estimates."""
    candidates = nsmallest(CANDIDATES, legal, key=lambda config: predicted(kernel, config, problem, device))
    return ranked(kernel, candidates, problem, device)


def by_corrected(choices: Sequence[Choice], corrected: Sequence[float], first: float) -> list[Choice]:
    """Choices, the best one by models and rules first, by corrected estimates, of which that one's counts `first`."""
    counted = [first * seconds if number == 0 else seconds for number, seconds in enumerate(corrected)]
    return [choices[number] for number in sorted(range(len(choices)), key=counted.__getitem__)]
