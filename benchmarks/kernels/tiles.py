"""Naive, tiled at every square tile, the best tiled and the vendor's library, at the seeds' sizes, in one run.

    python -m benchmarks.kernels.tiles [--device cuda:0] [--seconds 20]
        [--out benchmarks/results/kernels/tiles-cpu.json] [SHAPE ...]

Each shape is searched first (naive's and tiled's whole spaces, as far as the seconds reach). Then the contestants are
verified against float64 and sampled again in turn, many rounds in random order: the table holds the medians, so that
both sides of every ratio come from the same minute.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from app.devices.fleet import Unit, open_fleet
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import Measured
from app.tuning.runner import Contender, InterleavedSamples
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring import trial
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.space import Config

SHAPES = ("32x32x32", "256x256x256", "1024x1024x1024", "2048x2048x2048", "1000x1200x800")
ROUNDS = 15


def runner_of(unit: Unit, bench: trial.FixtureKey) -> TrialRunner:
    """What tries the candidates in the trial child."""
    return TrialRunner(unit, bench, lambda: False, lambda _: None)


def search(unit: Unit, problem: Problem, bench: trial.FixtureKey, seconds: float) -> dict[str, Config]:
    """The best config of naive and of tiled."""
    kernels = [CATALOGUE["naive"], CATALOGUE["tiled"]]
    task = Task(kernels, problem, unit.device, "random", 0)
    best: dict[str, Measured] = {}
    for outcome in tune(task, runner_of(unit, bench), lambda: Budget(None, seconds)):
        if isinstance(outcome, Measured) and outcome.kernel != trial.VENDOR:
            first = best.setdefault(outcome.kernel, outcome)
            if outcome.timing.median_ms < first.timing.median_ms:
                best[outcome.kernel] = outcome
    return {name: outcome.config for name, outcome in best.items()}


def contestants(unit: Unit, problem: Problem, best: Mapping[str, Config]) -> dict[str, Contender]:
    """What is measured in turn: the problem itself is the vendor's library."""
    field: dict[str, Contender] = {
        name: CATALOGUE[name].launch(config, problem, unit.device) for name, config in best.items()
    }
    tiled = CATALOGUE["tiled"]
    for tile in tiled.space.parameters["BM"]:
        config = tiled.space.config({"BM": tile, "BN": tile, "BK": tile})
        if tiled.space.refusal(config, problem, unit.device) is None:
            field[f"tiled {tile}"] = tiled.launch(config, problem, unit.device)
    return field | {"vendor": problem}


def measure(unit: Unit, problem: Problem, bench: trial.FixtureKey, field: Mapping[str, Contender]) -> dict[str, Any]:
    """Every contestant verified, then all of them in turn."""
    runner = runner_of(unit, bench)
    verified = {name: runner.attempt(contender, None) for name, contender in field.items()}
    right = {name: outcome for name, outcome in verified.items() if isinstance(outcome, Measured)}
    sample_interleaved = runner.sample([field[name] for name in right], ROUNDS)
    return {name: row(problem, right[name], sample_interleaved, number) for number, name in enumerate(right)}


def row(problem: Problem, outcome: Measured, sample_interleaved: InterleavedSamples, number: int) -> dict[str, Any]:
    """A contestant's figures, in the words of the service's answers."""
    time = 1e3 * median(sample_interleaved.seconds[number])
    return {
        "config": dict(outcome.config),
        "median_ms": time,
        "gflops": problem.flops / time / 1e6,
        "relative_l2": outcome.accuracy.relative_l2,
        "samples": len(sample_interleaved.seconds[number]),
        "policy": sample_interleaved.policy,
    }


def main() -> None:
    """Measure every shape and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels/tiles-cpu.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, open_fleet(arguments.device, Path(cache), 2**20) as fleet:
        unit = fleet.unit(None)
        report: dict[str, Any] = {
            "device": unit.device.name,
            "architecture": unit.device.architecture,
            "environment": unit.device.environment,
            "vendor": unit.vendor.name,
            "host": platform.platform(),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "shapes": {},
        }
        for shape in arguments.shapes:
            m, n, k = (int(size) for size in shape.split("x"))
            problem = Problem(m, n, k)
            bench = trial.FixtureKey(f"tiles {shape}", problem, 1)
            field = contestants(unit, problem, search(unit, problem, bench, arguments.seconds))
            report["shapes"][shape] = measure(unit, problem, bench, field)
            for name, figures in report["shapes"][shape].items():
                print(
                    f"{shape:16} {name:10} {figures['median_ms']:10.4f} ms {figures['gflops']:10.1f} GFLOP/s",
                    flush=True,
                )
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
