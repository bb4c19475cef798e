"""Shapes that were not tuned: what the service answers them with after some tunes, against what it would have untuned.

    python -m benchmarks.tuner.untuned [--device opencl] [--tunes 20] [--others 10] [--seconds 3] [--seed N]
        [--out FILE.json]

Each tune is of a shape drawn at random, and so are the other shapes that are asked for after it: sizes whose logarithms
are uniform, a third of them thin, a third batched, none of more than 2 GFLOP. Where the answer's config is not the
untuned choice's, both are measured in turn, in random order; a round's ratio is the answer's time over the untuned
choice's. A row has the median of the ratios and its 95 % interval (order statistics: no distribution is assumed).
An answer is slower by over 10 % where that interval's lower end is over 1.10, and within 3 % where the median is at
most 1.03. The bars: none slower by over 10 %, and 95 % within 3 %. Where both are one config the ratio is one.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections.abc import Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from app.errors import BudgetTooSmall
from app.main import opened
from app.services.best.lookup import BestConfigs
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.services.tuning.trial_runner import TrialRunner
from app.settings import Settings
from app.tuning.budget import Budget
from app.tuning.outcome import Measured
from app.worker.measuring.trial import FixtureKey
from kernels.launch import Launch
from kernels.problem import Problem

LARGEST, MOST_FLOPS = 2048, 2e9
SLOWER, WITHIN, SHARE = 1.10, 1.03, 0.95
ROUNDS = 61


def drawn(dice: random.Random) -> Problem:
    """A shape at random."""

    def size(largest: float) -> int:
        return round(exp(dice.uniform(0, log(largest))))

    while True:
        kind = dice.choice(("any", "thin", "batched"))
        sizes = [size(LARGEST) for _ in "mnk"]
        if kind == "thin":
            sizes[dice.randrange(3)] = size(16)
        batch = size(256) if kind == "batched" else 1
        m, n, k = sizes
        problem = Problem(m, n, k, batch)
        if problem.flops <= MOST_FLOPS:
            return problem


def tuned(service: Service, problem: Problem, seconds: float) -> str:
    """Tune a shape; gives how its job ended, or that the device is too slow for so few seconds."""
    order = TuneSpec((problem,), budget=Budget(seconds=seconds))
    try:
        job = service.tuning.submit(order, ANONYMOUS)
    except BudgetTooSmall:
        return "refused"
    return service.jobs.wait(job.id, 60 + 20 * seconds).state


def asked(service: Service, problem: Problem, rounds: int) -> dict[str, Any]:
    """What a shape is answered with, and that one's time over the untuned choice's."""
    default, answer = BestConfigs(service.fleet).answer(problem), service.best.answer(problem)
    row: dict[str, Any] = {
        "problem": problem.key,
        "match": answer.match,
        "matched": answer.matched_problem.key if answer.matched_problem else None,
        "answer": f"{answer.kernel} {answer.config}",
        "default": f"{default.kernel} {default.config}",
        "expected_loss": answer.expected_loss,
        "loss_bound": answer.loss_bound,
    }
    if (answer.kernel, answer.config) == (default.kernel, default.config):
        return row | {"ratio": 1.0, "ci95": [1.0, 1.0]}
    ratios = compared(service, problem, (answer.launch, default.launch), rounds)
    return row | {"ratio": median(ratios), "ci95": interval(ratios)}


def compared(service: Service, problem: Problem, launches: Sequence[Launch], rounds: int) -> list[float]:
    """The first launch's time over the second's, of every round; raises RuntimeError where one answers wrong."""
    runner = TrialRunner(service.fleet.unit(), FixtureKey("untuned", problem, 1), lambda: False, lambda _: None)
    for launch in launches:
        outcome = runner.attempt(launch, None)
        if not isinstance(outcome, Measured):
            raise RuntimeError(f"{launch.kernel} {launch.config}: {outcome.reason}")  # noqa: TRY004 - it is an outcome
    sample_interleaved = runner.sample(launches, rounds)
    return sorted(one / other for one, other in zip(*sample_interleaved.seconds, strict=True))


def interval(ratios: Sequence[float]) -> list[float]:
    """The 95 % interval of the median of sorted ratios, by the normal approximation of the binomial's ranks."""
    half = 1.96 * sqrt(len(ratios)) / 2
    low = max(0, int(len(ratios) / 2 - half))
    return [ratios[low], ratios[len(ratios) - 1 - low]]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the bars are about."""
    others = [row for row in rows if row["answer"] != row["default"]]
    return {
        "answers": len(rows),
        "nearest": len(others),
        "slower": sum(row["ci95"][0] > SLOWER for row in rows),
        "within": sum(row["ratio"] <= WITHIN for row in rows) / max(len(rows), 1),
        "slowest": max((row["ratio"] for row in rows), default=None),
        "fastest": min((row["ratio"] for row in rows), default=None),
        "mean_of_nearest": exp(sum(log(row["ratio"]) for row in others) / len(others)) if others else None,
    }


def main() -> None:
    """Tune, ask, compare, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--tunes", type=int, default=20)
    parser.add_argument("--others", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each tune")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dice = random.Random(options.seed)  # noqa: S311 - shapes, no secrets
    print(f"seed {options.seed}", flush=True)
    rows: list[dict[str, Any]] = []
    with (
        TemporaryDirectory() as folder,
        opened(Settings(data_dir=Path(folder), devices=options.device, slab_bytes=2**28), "a benchmark") as service,
    ):
        device = service.fleet.unit().device
        for number in range(options.tunes):
            problem = drawn(dice)
            state = tuned(service, problem, options.seconds)
            print(f"{number + 1:2} {problem.key} {state}", flush=True)
            for _ in range(options.others):
                rows.append({"after": number + 1, **asked(service, drawn(dice), options.rounds)})
                if rows[-1]["answer"] != rows[-1]["default"]:
                    print("  ", {name: rows[-1][name] for name in ("problem", "match", "ratio", "ci95")}, flush=True)
    found = summary(rows)
    met = found["slower"] == 0 and found["within"] >= SHARE
    print(json.dumps(found), "the bars are", "met" if met else "missed")
    if options.out:
        told = {"device": device.model, "environment": device.environment, "seed": options.seed}
        told |= {"seconds": options.seconds, "rounds": options.rounds, "summary": found, "met": met, "rows": rows}
        options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
