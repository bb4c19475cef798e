"""Naive, tiled at every square tile, the best tiled and the vendor's library, at the seeds' sizes, in one run.

    python benchmarks/tiles.py [--device cuda:0] [--seconds 20] [--out benchmarks/results/tiles-cpu.json] [SHAPE ...]

Each shape is searched first (naive's and tiled's whole spaces, as far as the seconds reach). Then the contestants are
measured again in turn, several rounds, every one verified against float64 each time: the table holds the median of
the rounds' medians, so that both sides of every ratio come from the same minute.
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
from app.errors import DeviceError
from app.tuning import trial
from app.tuning.outcome import Measured, Outcome, Rejected
from app.tuning.tuner import Budget, tune
from kernels import CATALOGUE
from kernels.kernel import Launch
from kernels.problem import Problem
from kernels.space import Config

SHAPES = ("32x32x32", "256x256x256", "1024x1024x1024", "2048x2048x2048", "1000x1200x800")
ROUNDS = 3
MEASURING = 0.25  # seconds of launches a round


def attempt(unit: Unit, launch: Launch, bench: trial.Bench) -> Outcome:
    """One candidate, compiled, verified and measured in the trial child."""
    try:
        unit.prepare(launch.build)
        outcome: Outcome = unit.trials.call(trial.attempt, launch, bench, MEASURING)
    except DeviceError as error:
        return Rejected(launch.kernel, launch.config, "launch", error.message)
    return outcome


def search(unit: Unit, problem: Problem, bench: trial.Bench, seconds: float) -> dict[str, Config]:
    """The best config of each kernel, and which of tiled's configs are square tiles."""
    kernels = list(CATALOGUE.values())
    outcomes = tune(
        kernels,
        problem,
        unit.device,
        "random",
        Budget(None, seconds),
        0,
        lambda launch: attempt(unit, launch, bench),
    )
    best: dict[str, Measured] = {}
    for outcome in outcomes:
        if isinstance(outcome, Measured):
            first = best.setdefault(outcome.kernel, outcome)
            if outcome.timing.median_ms < first.timing.median_ms:
                best[outcome.kernel] = outcome
    return {name: outcome.config for name, outcome in best.items()}


def contestants(unit: Unit, problem: Problem, best: Mapping[str, Config]) -> dict[str, Launch | None]:
    """What is measured in turn: None is the vendor's library."""
    field: dict[str, Launch | None] = {
        name: CATALOGUE[name].launch(config, problem, unit.device) for name, config in best.items()
    }
    tiled = CATALOGUE["tiled"]
    for tile in tiled.space.parameters["BM"]:
        config = tiled.space.config({"BM": tile, "BN": tile, "BK": tile})
        if tiled.space.refusal(config, problem, unit.device) is None:
            field[f"tiled {tile}"] = tiled.launch(config, problem, unit.device)
    return field | {"vendor": None}


def measure(unit: Unit, problem: Problem, bench: trial.Bench, field: Mapping[str, Launch | None]) -> dict[str, Any]:
    """Every contestant in turn, ROUNDS times."""
    rounds: dict[str, list[Measured]] = {name: [] for name in field}
    for _ in range(ROUNDS):
        for name, launch in field.items():
            if launch is None:
                outcome = unit.trials.call(trial.attempt_vendor, problem, bench, MEASURING)
            else:
                outcome = attempt(unit, launch, bench)
            if isinstance(outcome, Measured):
                rounds[name].append(outcome)
    return {name: row(problem, outcomes) for name, outcomes in rounds.items() if outcomes}


def row(problem: Problem, outcomes: list[Measured]) -> dict[str, Any]:
    """The median of the rounds, in the words of the service's answers."""
    time = median(outcome.timing.median_ms for outcome in outcomes)
    return {
        "config": dict(outcomes[0].config),
        "median_ms": time,
        "gflops": problem.flops / time / 1e6,
        "relative_l2": max(outcome.accuracy.relative_l2 for outcome in outcomes),
        "samples": sum(outcome.timing.samples for outcome in outcomes),
    }


def main() -> None:
    """Measure every shape and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tiles-cpu.json"))
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
            bench = trial.Bench(f"tiles {shape}", problem, 1)
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
