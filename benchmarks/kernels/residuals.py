"""Fit what corrects the kernels' estimates, and tell what picks by it are worth.

    python -m benchmarks.kernels.residuals [--trials FILE ...] [--judge FILE ...] [--check]

The trials are those that the tests keep of an H200, or `--trials` files of benchmarks.kernels.drawn on one; what is
fitted goes to kernels/residuals/sm_90.json.gz, once the models' constants are fitted (benchmarks.kernels.fit). What is
printed is the time of the config of the least estimate over that of the fastest one timed, of all kernels together: by
the models alone, and corrected by what was fitted to other problems; and of the shapes of `--judge`, which should be
drawn later, by what was fitted to none of them. With --check nothing is written, and the exit status is 1 if the
committed file corrects the trials otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import GradientBoostingRegressor

from benchmarks.kernels.trials import KEPT, Times, read_trials
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.residuals import FARTHEST, FILE, of_text, row
from tests.support.kernels.devices import H200

TABLES: Final = Path("kernels") / FILE
POINTS: Final = 1000  # and at most one for so many configs:
PER_POINT: Final = 2
REACH: Final = 1.0  # of a Gaussian, in standard deviations of every feature
RIDGE: Final = 0.03  # what the squared norm of the smooth function counts
JITTER: Final = 1e-6
TREES: Final = 200
LEAVES: Final = 24
SHRUNK: Final = 0.07  # what each tree counts
OF_FEATURES: Final = 0.3  # drawn for each split
OF_CONFIGS: Final = 0.5  # drawn for each tree
IN_LEAF: Final = 15  # configs at least
FAR: Final = 0.05  # what a config counts that takes far longer than its problem's fastest; that one counts 1.05
NEAR: Final = 3  # how steeply that falls with the time
FOLDS: Final = 5
LEAST: Final = 200  # configs of a kernel, which says nothing with fewer
ENOUGH: Final = 12  # configs of a problem, of all kernels, among which a pick says something
FEW: Final = 5  # problems of a kernel: where no more have as many operations, corrections extrapolate
DIGITS: Final = 4
# The standard deviation of corrections up to which two files are the same: a hundred-thousandth of the smooth function,
# which another processor's sums make, has trees split elsewhere, by 0.8 % of a time.
SAME: Final = 0.02
SPARSE: Final = 50
Vector: TypeAlias = npt.NDArray[np.float64]
# Of each problem: seconds timed, estimated and corrected, of all configs of all kernels.
Judged: TypeAlias = Mapping[Problem, Sequence[tuple[float, float, float]]]


@dataclass(frozen=True)
class Table:
    """The configs of a kernel: problems, rows of features, and logarithms of times over estimates."""

    kernel: str
    problems: Sequence[Problem]
    rows: Vector
    seconds: Vector
    weights: Vector

    @property
    def residuals(self) -> Vector:
        """Logarithms of times over estimates."""
        return np.log(self.seconds) - self.estimates

    @property
    def estimates(self) -> Vector:
        """Logarithms of the model's seconds."""
        return self.rows[:, 0] * log(2)

    def of(self, mask: npt.NDArray[np.bool_]) -> Table:
        """Some of the configs."""
        problems = [problem for problem, wanted in zip(self.problems, mask, strict=True) if wanted]
        return Table(self.kernel, problems, self.rows[mask], self.seconds[mask], self.weights[mask])

    def among(self, problems: Iterable[Problem]) -> npt.NDArray[np.bool_]:
        """Which configs are of these problems."""
        wanted = set(problems)
        return np.array([problem in wanted for problem in self.problems], dtype=np.bool_)


def table(name: str, times: Mapping[str, Times]) -> Table:
    """A kernel's configs that were timed, of the times of all kernels."""
    kernel, problems, rows = CATALOGUE[name], list[Problem](), list[Any]()
    seconds, weights = list[float](), list[float]()
    for problem, found in times[name].items():
        fastest = min(took for each in times.values() for took in each.get(problem, {}).values())
        for config, took in found.items():
            problems.append(problem)
            rows.append(row(kernel, config, problem, H200))
            seconds.append(1e-6 * took)
            weights.append(FAR + (fastest / took) ** NEAR)
    return Table(name, problems, np.array(rows, np.float64), np.array(seconds), np.array(weights))


def enough(times: Mapping[str, Times]) -> list[Table]:
    """The tables of the kernels of which enough configs were timed."""
    return [table(name, times) for name in sorted(times) if sum(map(len, times[name].values())) >= LEAST]


@dataclass(frozen=True)
class Smooth:
    """Gaussians around points, in standard deviations of the features from their means."""

    means: Vector
    deviations: Vector
    points: Vector
    weights: Vector

    @property
    def decay(self) -> float:
        """What a Gaussian's logarithm falls by for a squared distance of one."""
        return 1 / (2 * REACH**2 * len(self.means))

    def standard(self, rows: Vector) -> Vector:
        """Rows of features in standard deviations from the means, as points are."""
        return np.clip((rows - self.means) / self.deviations, -FARTHEST, FARTHEST)

    def gaussians(self, at: Vector) -> Vector:
        """The Gaussian of each standard row and point."""
        squares = (at**2).sum(1)[:, None] + (self.points**2).sum(1) - 2 * at @ self.points.T
        found: Vector = np.exp(-self.decay * np.maximum(squares, 0))
        return found

    def sum(self, rows: Vector) -> Vector:
        """The weighted sum of the Gaussians for each row of features."""
        return self.gaussians(self.standard(rows)) @ self.weights


def smooth(one: Table) -> Smooth:
    """The function of the least squared error and norm, around configs that are drawn as they count."""
    means = np.average(one.rows, axis=0, weights=one.weights).round(DIGITS)
    deviations = (one.rows.std(0) + JITTER).round(DIGITS + 2)
    start = Smooth(means, deviations, np.zeros((0, len(means))), np.zeros(0))
    count, likely = min(POINTS, len(one.rows) // PER_POINT), one.weights / one.weights.sum()
    drawn = np.random.default_rng(0).choice(len(one.rows), count, replace=False, p=likely)
    at = start.standard(one.rows)
    found = replace(start, points=at[drawn].round(DIGITS - 2))
    own, between = found.gaussians(at), found.gaussians(found.points)
    left = own.T @ (one.weights[:, None] * own) + RIDGE * between + JITTER * np.eye(count)
    wanted = one.residuals - np.average(one.residuals, weights=one.weights)
    weights: Vector = np.linalg.solve(left, own.T @ (one.weights * wanted)).astype(np.float64)
    return replace(found, weights=weights.round(DIGITS + 2))


def fitted(one: Table) -> tuple[Smooth, GradientBoostingRegressor]:
    """A smooth function, and trees of what it leaves; the squared error of fast configs counts most."""
    found = smooth(one)
    trees = GradientBoostingRegressor(
        n_estimators=TREES,
        max_depth=None,
        max_leaf_nodes=LEAVES,
        learning_rate=SHRUNK,
        subsample=OF_CONFIGS,
        max_features=OF_FEATURES,
        min_samples_leaf=IN_LEAF,
        random_state=0,
    )
    return found, trees.fit(one.rows, one.residuals - found.sum(one.rows), sample_weight=one.weights)


def content(one: Table) -> dict[str, Any]:
    """What kernels.residuals reads."""
    (found, trees), flops = fitted(one), sorted(problem.flops for problem in set(one.problems))
    return {
        "classes": sorted({(problem.dtype, problem.precision) for problem in one.problems}),
        "most_flops": flops[-1],
        "few_flops": flops[max(len(flops) - 1 - FEW, 0)],
        "means": found.means.tolist(),
        "deviations": found.deviations.tolist(),
        "decay": found.decay,
        "points": found.points.tolist(),
        "weights": found.weights.tolist(),
        "bias": round(float(trees.init_.constant_.item()), DIGITS),
        "trees": [_node(each.tree_, 0) for each in trees.estimators_[:, 0]],
    }


def _node(tree: Any, at: int) -> Any:
    """A leaf's share of a sum, or a feature, a threshold and what is below it and above."""
    below, above = int(tree.children_left[at]), int(tree.children_right[at])
    if below < 0:
        return round(SHRUNK * float(tree.value[at].item()), DIGITS)
    threshold = float(f"{float(tree.threshold[at]):.{DIGITS + 1}g}")
    return [int(tree.feature[at]), threshold, _node(tree, below), _node(tree, above)]


def judged(tables: Sequence[Table], held: Sequence[Iterable[Problem]]) -> Judged:
    """Problems held out in turn, by what was fitted to all others."""
    found = defaultdict[Problem, list[tuple[float, float, float]]](list)
    for problems in map(set, held):
        for one in tables:
            mask = one.among(problems)
            if mask.any():
                own, (around, trees) = one.of(mask), fitted(one.of(~mask))
                corrected = own.estimates + around.sum(own.rows) + trees.predict(own.rows)
                for problem, *figures in zip(own.problems, own.seconds, own.estimates, corrected, strict=True):
                    found[problem].append((figures[0], figures[1], figures[2]))
    return {problem: figures for problem, figures in found.items() if len(figures) >= ENOUGH}


def told(label: str, found: Judged) -> Iterator[str]:
    """Lines of what picks lose, by the models and corrected."""
    for how, column in (("by the models alone", 1), ("corrected", 2)):
        losses = [min(each, key=lambda one: one[column])[0] / min(each)[0] for each in found.values()]
        median, p95 = np.quantile(losses, (0.5, 0.95))
        mean = exp(float(np.mean(np.log(losses))))
        yield (
            f"{label}, {how}: {mean:.3f} of the fastest, {median:.3f} in the middle, {p95:.3f} for 19 of 20, "
            f"{max(losses):.2f} at most, {len(losses)} problems"
        )


def folds(tables: Sequence[Table]) -> list[list[Problem]]:
    """All problems, in parts by chance."""
    problems = sorted({problem for one in tables for problem in one.problems}, key=str)
    parts = np.random.default_rng(0).integers(0, FOLDS, len(problems))
    return [[problems[at] for at in np.flatnonzero(parts == part)] for part in range(FOLDS)]


def written(tables: Sequence[Table]) -> str:
    """The file's text: a line for each kernel."""
    lines = (f'"{one.kernel}": {json.dumps(content(one), separators=(",", ":"))}' for one in tables)
    return '{"kernels": {\n' + ",\n".join(lines) + "\n}}\n"


def differs(tables: Sequence[Table], *texts: str) -> bool:
    """Whether two files' texts correct the trials otherwise, by more than another processor's fit does."""
    one, other = map(of_text, texts)
    if one.keys() != other.keys():
        return True
    some = [(each.kernel, figures) for each in tables for figures in each.rows[::SPARSE]]
    told = [(one[kernel].sum(figures), other[kernel].sum(figures)) for kernel, figures in some]
    return bool(np.std(np.subtract(*np.transpose(told))) > SAME)


def main() -> None:
    """Fit, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=Path, nargs="+", default=[KEPT])
    parser.add_argument("--judge", type=Path, nargs="+", default=[])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    times = read_trials(asked.trials)
    tables = enough(times)
    text = written(tables)
    if asked.check:
        sys.exit(differs(tables, text, gzip.decompress(TABLES.read_bytes()).decode()))
    TABLES.write_bytes(gzip.compress(text.encode(), mtime=0))
    print("\n".join(told("held out", judged(tables, folds(tables)))))
    if asked.judge:
        later = read_trials(asked.judge)
        problems = {problem for found in later.values() for problem in found}
        both = {name: {**found, **later.get(name, {})} for name, found in times.items()}
        print("\n".join(told("drawn later", judged(enough(both), [problems]))))


if __name__ == "__main__":
    main()
