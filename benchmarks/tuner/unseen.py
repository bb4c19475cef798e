"""Answers for shapes that were not tuned: each of a set of tuned shapes answered from the others, and what that costs.

    python -m benchmarks.tuner.unseen CROSSED.jsonl [--around N] [--out benchmarks/results/tuner/unseen-h200.json]

Reads what cross.py writes. Performance is the tuned time over the answer's, at most 1; the bars are a median of 0.9,
bounds that hold for 95 % of the shapes, and a median bound of 1.3. The whole matrix is used, and once more only what
tunes see that try the winners of the N nearest shapes. An answer that could not be measured breaks its bound.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from app.tuning.transfer import Transfer, TransferChoice, TunedProblem, distance
from benchmarks.tuner.cross import problem_of, whole_lines
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.device import Device, Limits
from kernels.problem import Problem

PERFORMANCE, HOLDS, BOUND, APART = 0.9, 0.95, 1.3, 1.5
AROUND = 8


@dataclass(frozen=True, slots=True)
class Told:
    """One shape's answer as if it had not been tuned; the losses are ratios of its time to the tuned one's."""

    name: str
    problem: Problem
    choice: TransferChoice
    loss: float
    expected: float
    bound: float

    @property
    def performance(self) -> float:
        """The share of the tuned performance that the answer reaches."""
        return 1 / max(1.0, self.loss)


def tuned_of(lines: Iterable[dict[str, Any]]) -> tuple[dict[Problem, str], list[TunedProblem]]:
    """Each shape's class, and the shapes with what every winner took on them."""
    lines = list(lines)
    times = {problem_of(line["sizes"]): line["times"] for line in lines if line["is"] == "crossed"}
    classes, tuned = {}, []
    for line in lines:
        if line["is"] == "tuned" and (problem := problem_of(line["sizes"])) in times:
            seconds = {choice_of(row): row["ms"] / 1e3 for row in times[problem]}
            kernel, config = choice_of(line)
            classes[problem] = line["class"]
            tuned.append(TunedProblem(problem, kernel, config, seconds[kernel, config], seconds))
    return classes, tuned


def choice_of(row: dict[str, Any]) -> TransferChoice:
    """The kernel and config of a row."""
    return row["kernel"], CATALOGUE[row["kernel"]].space.config(row["config"])


def seen(tuned: Sequence[TunedProblem], around: int | None) -> list[TunedProblem]:
    """What tunes see that try the winners of so many of the nearest shapes; None: of all."""
    if around is None:
        return list(tuned)
    kept = []
    for one in tuned:
        near = sorted((each for each in tuned if each is not one), key=lambda each: distance(each.problem, one.problem))
        winners = {(each.kernel, each.config) for each in near[:around]} | {(one.kernel, one.config)}
        others = {choice: seconds for choice, seconds in one.others.items() if choice in winners}
        kept.append(TunedProblem(one.problem, one.kernel, one.config, one.seconds, others))
    return kept


def left_out(
    tuned: Sequence[TunedProblem], around: int | None, classes: dict[Problem, str], device: Device
) -> list[Told]:
    """Every shape answered from the others."""

    def legal(choice: TransferChoice, problem: Problem) -> bool:
        return CATALOGUE[choice[0]].space.refusal(choice[1], problem, device) is None

    def seconds(choice: TransferChoice, problem: Problem) -> float:
        return predict(CATALOGUE[choice[0]], choice[1], problem, device)

    told = []
    for one in tuned:
        rest = [each for each in tuned if each is not one]
        found = Transfer(seen(rest, around), legal, seconds).choose(one.problem)
        if found is None:
            raise SystemExit(f"no winner is legal for {one.problem.key}")
        choice = found.kernel, found.config
        loss = one.others.get(choice, inf) / one.seconds
        told.append(Told(classes[one.problem], one.problem, choice, loss, found.expected_loss, found.loss_bound))
    return told


def summary(told: Sequence[Told]) -> dict[str, Any]:
    """The figures that the bars are about."""
    return {
        "shapes": len(told),
        "performance": median(one.performance for one in told),
        "worst_performance": min(one.performance for one in told),
        "holds": fmean(one.loss <= one.bound for one in told),
        "bound": median(one.bound for one in told),
        "mean_expected": fmean(one.expected for one in told),
        "mean_loss": fmean(max(1.0, one.loss) for one in told),
    }


def report(told: Sequence[Told]) -> dict[str, Any]:
    """The whole set, each class, and each shape."""
    classes = {name: [one for one in told if one.name == name] for name in dict.fromkeys(one.name for one in told)}
    shapes = [
        {"class": one.name, "problem": one.problem.key, "kernel": one.choice[0], "config": dict(one.choice[1])}
        | {"loss": one.loss, "expected_loss": one.expected, "loss_bound": one.bound}
        for one in told
    ]
    return {"all": summary(told), "classes": {name: summary(part) for name, part in classes.items()}, "shapes": shapes}


def too_close(problems: Iterable[Problem]) -> list[tuple[Problem, Problem]]:
    """The pairs that are within 1.5 times of each other in every dimension."""

    def ratio(one: int, other: int) -> float:
        return max(one / other, other / one)

    return [
        (one, other)
        for one, other in combinations(problems, 2)
        if max(ratio(one.m, other.m), ratio(one.n, other.n), ratio(one.k, other.k), ratio(one.batch, other.batch))
        <= APART
    ]


def show(title: str, figures: dict[str, Any]) -> None:
    """One line of a table."""
    print(
        f"{title:14} {figures['shapes']:3} shapes: performance {figures['performance']:.3f}"
        f" (worst {figures['worst_performance']:.3f}), bound holds {figures['holds']:.3f},"
        f" bound {figures['bound']:.3f}; mean loss {figures['mean_loss']:.3f}, expected {figures['mean_expected']:.3f}"
    )


def main() -> None:
    """Answer every shape from the others, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crossed", type=Path)
    parser.add_argument("--around", type=int, default=AROUND)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = whole_lines(options.crossed)
    device = Device(**{**lines[0]["device"], "limits": Limits(**lines[0]["device"]["limits"])})
    classes, tuned = tuned_of(lines)
    for one, other in too_close(classes):
        print(f"{one.key} and {other.key} are within {APART} times in every dimension")
    result: dict[str, Any] = {"device": device.model, "environment": device.environment}
    for name, around in (("the whole matrix", None), (f"the {options.around} nearest", options.around)):
        result[name] = report(left_out(tuned, around, classes, device))
        print(f"from {name}:")
        for title, figures in (("all", result[name]["all"]), *result[name]["classes"].items()):
            show(title, figures)
        figures = result[name]["all"]
        met = figures["performance"] >= PERFORMANCE and figures["holds"] >= HOLDS and figures["bound"] <= BOUND
        print(f"the bars are {'met' if met else 'missed'}\n")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
