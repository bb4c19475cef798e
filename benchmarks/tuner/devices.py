"""Tunes an hour on one device and on all equal ones, the same shapes, and whether their winners are as fast.

python -m benchmarks.tuner.devices [--devices cuda] [--shapes 12] [--seconds 20] [--rounds 1] [--out FILE]

Each run has a fresh database and a fresh cache of compiled kernels. Boards differ: where the
winners of the last two runs are not the same they are timed again, in turn, on the first device.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from app.main import opened
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.settings import Settings
from app.tuning.budget import Budget
from benchmarks.tuner.untuned import compared
from kernels import CATALOGUE
from kernels.problem import Problem

RESULT: Final = Path("benchmarks/results/tuner/devices.json")
_SIDES: Final = (768, 1024, 1536, 2048, 3072, 4096)
_LONGEST: Final = 3600.0
_ROUNDS: Final = 40
_TOLD: Final = ("device", "kernel", "config", "median_ms", "error")


def main() -> None:
    """Tune on one and on all, in turn, and write what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--shapes", type=int, default=12)
    parser.add_argument("--side", type=int, default=_SIDES[-1], help="the largest side")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each shape")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    problems = shapes(arguments.shapes, arguments.side)
    runs = [
        tuned(problems, arguments, one=one)
        for number in range(arguments.rounds)
        for one in ((True, False), (False, True))[number % 2]
    ]
    row = rates(runs) | {"seconds_a_shape": arguments.seconds}
    row |= {"winners_again": timed_again(problems, runs[-2:], arguments.devices), "runs": runs}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps({name: value for name, value in row.items() if name != "runs"}, indent=1))


def shapes(count: int, side: int) -> list[Problem]:
    """So many different problems, no two of a size."""
    sides = [each for each in _SIDES if each <= side] or [side]
    return [Problem(sides[number % len(sides)], side, side - 64 * number) for number in range(count)]


def tuned(problems: list[Problem], arguments: argparse.Namespace, *, one: bool) -> dict[str, Any]:
    """One job of all shapes on one device or all: its wall seconds, and each shape's winner."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), devices=arguments.devices, slab_bytes=2**28)
        with opened(settings, "the benchmark") as service:
            return _measured(service, problems, arguments.seconds, one=one)


def _measured(service: Service, problems: list[Problem], seconds: float, *, one: bool) -> dict[str, Any]:
    units = service.fleet.units
    devices = (units[0].device.id,) if one else ()
    spec = TuneSpec(tuple(problems), devices, budget=Budget(seconds=seconds * len(problems)))
    started = perf_counter()
    job = service.jobs.wait(service.tuning.submit(spec, ANONYMOUS).id, _LONGEST)
    wall = perf_counter() - started
    best = {each["problem"]: each for each in (job.result or {"best": []})["best"]}
    return {
        "devices": 1 if one else len(units),
        "model": units[0].device.name,
        "wall_s": wall,
        "tunes_an_hour": len(problems) * 3600 / wall,
        "trials": job.done,
        "winners": {name: {key: each.get(key) for key in _TOLD} for name, each in best.items()},
    }


def rates(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of the rates, medians of the rounds, and of the winners' times."""
    alone, together = ([run for run in runs if (run["devices"] == 1) is one] for one in (True, False))
    hourly = [median(run["tunes_an_hour"] for run in group) for group in (alone, together)]
    times = [
        median(run["winners"][name]["median_ms"] for run in together)
        / median(run["winners"][name]["median_ms"] for run in alone)
        for name in alone[0]["winners"]
    ]
    return {
        "devices": together[0]["devices"],
        "model": together[0]["model"],
        "tunes_an_hour": {"one": hourly[0], "all": hourly[1]},
        "ratio": hourly[1] / hourly[0],
        "winners_time_ratio": {"median": median(times), "least": min(times), "most": max(times)},
        "trials_a_shape": [median(run["trials"] for run in group) / len(times) for group in (alone, together)],
    }


def timed_again(problems: list[Problem], runs: list[dict[str, Any]], devices: str) -> dict[str, float]:
    """By problem, the winner's time of the run on all over that of the run on one, in turn on the first device."""
    alone, together = sorted(runs, key=lambda run: int(run["devices"]))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), devices=devices, slab_bytes=2**28)
        with opened(settings, "the benchmark") as service:
            return {problem.key: _again(service, problem, alone, together) for problem in problems}


def _again(service: Service, problem: Problem, *runs: dict[str, Any]) -> float:
    winners = [run["winners"][problem.key] for run in runs]
    device = service.fleet.units[0].device
    launches = []
    for winner in winners:
        kernel = CATALOGUE[winner["kernel"]]
        launches.append(kernel.launch(kernel.space.config(winner["config"]), problem, device))
    return 1.0 if launches[0] == launches[1] else median(compared(service, problem, launches[::-1], _ROUNDS))


if __name__ == "__main__":
    main()
