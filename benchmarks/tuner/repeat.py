"""Tune each shape twice, independently, and measure both winners side by side: does the tuner agree with itself.

Each tune has its own seed, operands and search; the two winners are then measured interleaved, in random order, on cold
buffers. A row is appended as it comes: the same command goes on where a stopped run was.

    python -m benchmarks.tuner.repeat OUT.jsonl [--device cuda] [--seconds 10] [MxNxK ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from app.devices.fleet import Unit, open_fleet
from app.services.best.kernel_order import searched
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport, Measured
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring.trial import FixtureKey
from benchmarks.tuner.record import problem_of
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem

SHAPES = (
    "256x256x256",
    "512x512x512",
    "1024x1024x1024",
    "1023x1025x1027",
    "2048x2048x2048",
    "4096x64x1024",
    "64x4096x512",
    "16x4096x4096",
    "8192x128x256",
    "128x128x128x64",
)
ROUNDS, CLOSE = 100, 1.01


def winner(unit: Unit, problem: Problem, seconds: float, seed: int) -> tuple[Measured, Launch]:
    """The best of one tune, and its launch; raises RuntimeError where nothing could be measured."""
    runner = TrialRunner(unit, FixtureKey(f"repeat {seed}", problem, seed), lambda: False, lambda _: None)
    task = Task(tuple(searched(problem, unit.device)), problem, unit.device, "auto", seed)
    for outcome in tune(task, runner, lambda: Budget(seconds=seconds)):
        if isinstance(outcome, FinalReport):
            best = outcome.best
            return best, CATALOGUE[best.kernel].launch(best.config, problem, unit.device)
    raise RuntimeError(f"nothing of {problem.key} could be measured")


def compare(unit: Unit, problem: Problem, seconds: float) -> dict[str, Any]:
    """Both winners, what each tune told of them, and what they take side by side in milliseconds."""
    found = [winner(unit, problem, seconds, seed) for seed in (1, 2)]
    runner = TrialRunner(unit, FixtureKey("repeat", problem, 3), lambda: False, lambda _: None)
    sample_interleaved = runner.sample([launch for _, launch in found], ROUNDS)
    side_by_side = [1e3 * median(samples) for samples in sample_interleaved.seconds]
    return {
        "problem": problem.key,
        "winners": [f"{best.kernel} {best.config}" for best, _ in found],
        "told_ms": [best.timing.median_ms for best, _ in found],
        "ci95_ms": [best.timing.ci95_ms for best, _ in found],
        "side_by_side_ms": side_by_side,
        "ratio": max(side_by_side) / min(side_by_side),
        "same": found[0][1].config == found[1][1].config,
    }


def main() -> None:
    """Compare every shape that the file does not have yet, and say how many agree within 1 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each tune")
    options = parser.parse_args()
    text = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    with TemporaryDirectory() as cache, open_fleet(options.device, Path(cache), 2**26) as fleet:
        for problem in map(problem_of, options.shapes):
            if problem.key in {row["problem"] for row in rows}:
                continue
            rows.append(compare(fleet.unit(), problem, options.seconds))
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(rows[-1]["problem"], f"{rows[-1]['ratio']:.4f}", *rows[-1]["winners"], flush=True)
    agreed = sum(row["ratio"] <= CLOSE for row in rows)
    print(f"within 1 % of each other: {agreed} of {len(rows)}")


if __name__ == "__main__":
    main()
