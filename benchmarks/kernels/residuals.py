"""Fit the trees that correct the kernels' estimates, and tell what picks by them are worth.

    python -m benchmarks.kernels.residuals [--trials FILE ...] [--judge FILE ...] [--check]

The trials are those that the tests keep of an H200, or `--trials` files of benchmarks.kernels.drawn on one; the trees
go to kernels/residuals/sm_90.json.gz, once the models' constants are fitted (benchmarks.kernels.fit). What is printed
is the time of the config of the least estimate over that of the fastest one timed, of all kernels together: by the
models alone, and corrected by trees that were fitted to other problems; and of the shapes of `--judge`, which should be
drawn later, by trees fitted to none of them. With --check nothing is written, and the exit status is 1 if other trees
would be.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import GradientBoostingRegressor

from benchmarks.kernels.trials import KEPT, Times, read_trials
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.residuals import FILE, row
from tests.support.kernels.devices import H200

TABLES: Final = Path("kernels") / FILE
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
LARGE: Final = 0.9  # of the problems are not
DIGITS: Final = 4
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


def table(name: str, times: Times) -> Table:
    """A kernel's configs that were timed; those that its space refuses by now are left out."""
    kernel, problems, rows = CATALOGUE[name], list[Problem](), list[Any]()
    seconds, weights = list[float](), list[float]()
    for problem, found in times.items():
        fastest = min(found.values())
        for config, took in found.items():
            problems.append(problem)
            rows.append(row(kernel, config, problem, H200))
            seconds.append(1e-6 * took)
            weights.append(FAR + (fastest / took) ** NEAR)
    return Table(name, problems, np.array(rows, np.float64), np.array(seconds), np.array(weights))


def fitted(one: Table) -> GradientBoostingRegressor:
    """Trees of the least squared error, of which that of fast configs counts most."""
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
    return trees.fit(one.rows, one.residuals, sample_weight=one.weights)


def content(one: Table) -> dict[str, Any]:
    """What kernels.residuals reads."""
    trees, flops = fitted(one), [problem.flops for problem in set(one.problems)]
    return {
        "classes": sorted({(problem.dtype, problem.precision) for problem in one.problems}),
        "most_flops": max(flops),
        "large_flops": int(np.quantile(flops, LARGE)),
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
    """Problems held out in turn, by trees fitted to all others."""
    found = defaultdict[Problem, list[tuple[float, float, float]]](list)
    for problems in map(set, held):
        for one in tables:
            mask = one.among(problems)
            if mask.any():
                own, trees = one.of(mask), fitted(one.of(~mask))
                corrected = own.estimates + trees.predict(own.rows)
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


def main() -> None:
    """Fit, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=Path, nargs="+", default=[KEPT])
    parser.add_argument("--judge", type=Path, nargs="+", default=[])
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    times = read_trials(asked.trials)
    tables = [table(name, times[name]) for name in sorted(times) if sum(map(len, times[name].values())) >= LEAST]
    text = written(tables).encode()
    if asked.check:
        sys.exit(text != gzip.decompress(TABLES.read_bytes()))
    TABLES.write_bytes(gzip.compress(text, mtime=0))
    print("\n".join(told("held out", judged(tables, folds(tables)))))
    if asked.judge:
        later = read_trials(asked.judge)
        problems = {problem for times in later.values() for problem in times}
        together = [table(name, {**times.get(name, {}), **later[name]}) for name in sorted(later)]
        print("\n".join(told("drawn later", judged(together, [problems]))))


if __name__ == "__main__":
    main()
