"""The bars of measuring: regret of the choice, truth of what is told, time that racing saves, the detector's rates.

    python -m benchmarks.tuner.measurement [PATH...] [--repeats 1000] [--seed 0]

PATHs are Kernel Tuner's caches or our own recordings; without any, those under tests/data and a synthetic space. The
interval and the detector are always judged on synthetic noise of known truth.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.tuner.kernel_tuner_cache import recordings

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "tuning"))
from app.tuning.budget import Budget
from app.tuning.finals import finals
from app.tuning.measure.drift import DriftDetector
from app.tuning.measure.racing import NoiseModel, race
from app.tuning.measure.statistics import autocorrelated_interval
from app.tuning.outcome import FinalReport, Measured, Outcome, Rejected
from app.tuning.replay import Recording, Replay
from app.tuning.runner import Contender
from app.tuning.task import Task
from app.tuning.tuner import tune
from kernels.device import Device, Limits
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.tuning.synthetic_noise import (
    FAMILIES,
    PROBLEM,
    Machine,
    Synthetic,
    launch,
    launches,
    per_second,
    slower,
)

RESULT = Path("benchmarks/results/tuner/measurement.json")
DATA = Path("tests/data")
LIMIT = 5.0  # seconds of finals, as a tune has them
FIXED = 32  # runs of each config: what racing is compared with
TOP = 500
SHUFFLED = 2000


@dataclass(frozen=True)
class Figure:
    """One bar: what was measured where, and whether it is met; `bar` is None where a figure is told alone."""

    what: str
    where: str
    figure: float
    bar: str | None = None
    met: bool | None = None


def below(what: str, where: str, figure: float, bar: float) -> Figure:
    """A figure that a bar bounds above."""
    return Figure(what, where, figure, f"<= {bar:g}", figure <= bar)


def above(what: str, where: str, figure: float, bar: float) -> Figure:
    """A figure that a bar bounds below."""
    return Figure(what, where, figure, f">= {bar:g}", figure >= bar)


def covering(where: str, figure: float) -> Figure:
    """A share of intervals that held the truth."""
    return Figure("interval holds the truth", where, figure, "0.93 to 0.97", 0.93 <= figure <= 0.97)


def name(recording: Recording) -> str:
    """What a recording is called in the table."""
    problem = recording.problem
    return f"{recording.device.name} {recording.kernel} {problem.m}x{problem.n}x{problem.k}"


def measured(recording: Recording) -> dict[Config, tuple[float, ...]]:
    """The configs that were timed as often as the statistics need."""
    found = {config: one for config, one in recording.outcomes.items() if not isinstance(one, Rejected)}
    return {config: seconds for config, seconds in found.items() if len(seconds) >= FIXED}


def chosen(recording: Recording, order: Sequence[Config], seed: int) -> FinalReport:
    """Race configs in an order on resampled times, and have the finals choose."""
    runner, kernel = Replay(recording, seed), recording.space()
    outcomes: list[Outcome] = []
    best: float | None = None
    for config in order:
        outcome = runner.attempt(kernel.launch(config, recording.problem, recording.device), best)
        outcomes.append(outcome)
        if isinstance(outcome, Measured):
            seconds = outcome.timing.median_ms / 1e3
            best = seconds if best is None else min(best, seconds)

    def launch_of(one: Measured) -> Launch:
        return kernel.launch(one.config, recording.problem, recording.device)

    final = finals(outcomes, None, launch_of, runner, recording.problem, LIMIT, seed)
    assert final is not None  # noqa: S101  every config was measured
    return final


def regret(recording: Recording, repeats: int, seed: int) -> Iterator[Figure]:
    """What the chosen config loses to the best of all 32 samples, by their median and by their mean."""
    times = measured(recording)
    top = sorted(times, key=lambda config: median(times[config]))[:TOP]
    generator = random.Random(seed)  # noqa: S311  no secret
    finalists = [chosen(recording, generator.sample(top, len(top)), number) for number in range(repeats)]
    for statistic, middle in (("median", median), ("mean", fmean)):
        truth = {config: middle(times[config]) for config in top}
        least = min(truth.values())
        losses = [truth[final.best.config] / least - 1 for final in finalists]
        where = f"{name(recording)}, top {len(top)}, truth the {statistic}"
        yield below("regret of the choice, mean", where, fmean(losses), 0.002)
        yield below("regret of the choice, p95", where, float(np.quantile(losses, 0.95)), 0.005)
    truth = {config: median(times[config]) for config in top}
    flattery = [1 - final.best.timing.median_ms / 1e3 / truth[final.best.config] for final in finalists]
    yield below("optimism of the reported time", f"{name(recording)}, top {len(top)}", fmean(flattery), 0.01)


def tuned(recording: Recording, repeats: int, seed: int) -> Iterator[Figure]:
    """The same over whole tunes' paths: the regret against the best config tried, and what racing saves on the path."""
    kernel, times = recording.space(), measured(recording)
    losses, saved = [], []
    for number in range(repeats):
        task = Task((kernel,), recording.problem, recording.device, "auto", seed + number)
        steps = list(tune(task, Replay(recording, seed + number), lambda: Budget(trials=200)))
        tried = [one.config for one in steps if isinstance(one, Measured) and one.config in times]
        final = next(one for one in steps if isinstance(one, FinalReport))
        truth = {config: median(times[config]) for config in tried}
        losses.append(median(times[final.best.config]) / min(truth.values()) - 1)
        saved.append(raced([times[config] for config in tried])[0])
    where = f"{name(recording)}, {repeats} tunes of 200 trials"
    yield below("regret of the choice, mean", where, fmean(losses), 0.002)
    yield below("regret of the choice, p95", where, float(np.quantile(losses, 0.95)), 0.005)
    yield Figure("kernel time saved by racing", where, fmean(saved))


def raced(rows: Sequence[Sequence[float]]) -> tuple[float, bool]:
    """Race configs' samples as they were recorded; the share of 32 runs saved, and whether the fastest was dropped."""
    noise, best, spent = NoiseModel(), inf, 0.0
    fastest, dropped = min(range(len(rows)), key=lambda number: median(rows[number])), False
    for number, row in enumerate(rows):
        run = race(taking(row), None if best == inf else best, inf, noise)
        spent += sum(run.seconds)
        if run.dropped:
            dropped = dropped or number == fastest
        else:
            best = min(best, median(run.seconds))
    return 1 - spent / sum(sum(row[:FIXED]) for row in rows), dropped


def taking(row: Sequence[float]) -> Callable[[int], list[float]]:
    """A config's samples as they were recorded, from the first."""
    left = iter(row)
    return lambda count: [next(left) for _ in range(count)]


def racing(recording: Recording, repeats: int, seed: int) -> Iterator[Figure]:
    """What racing saves over shuffles of the whole recording, and how often it loses the winner."""
    rows = list(measured(recording).values())
    generator = random.Random(seed)  # noqa: S311  no secret
    runs = [raced(generator.sample(rows, min(SHUFFLED, len(rows)))) for _ in range(repeats)]
    where = f"{name(recording)}, {repeats} shuffles x {min(SHUFFLED, len(rows))}"
    yield above("kernel time saved by racing", where, fmean(share for share, _ in runs), 0.93)
    yield below("winner lost by racing", where, fmean(lost for _, lost in runs), 0.001)


def coverage(repeats: int, seed: int) -> Iterator[Figure]:
    """Whether the interval of 50, 100 and 200 samples holds the truth, by family of noise and pooled."""
    generator = np.random.default_rng(seed)
    pooled: list[float] = []
    for family, draw in FAMILIES.items():
        for size in (50, 100, 200):
            rows = np.exp(0.01 * draw(generator, repeats, size))
            bounds = np.array([autocorrelated_interval(row.tolist()) for row in rows])
            pooled.append(float(np.mean((bounds[:, 0] <= 1) & (bounds[:, 1] >= 1))))
            yield covering(f"series, {family}, {size} samples", pooled[-1])
    yield covering("series, pooled", fmean(pooled))


MACHINES: dict[str, dict[str, Any]] = {
    "white 0.2 %": {"scale": 0.002},
    "white 1 %": {"scale": 0.01},
    "white 3 %": {"scale": 0.03},
    "heavy 1 %": {"scale": 0.01, "tail": 3},
    "AR 0.5": {"scale": 0.01, "phi": 0.5, "common": 1.0},
    "AR 0.9": {"scale": 0.01, "phi": 0.9, "common": 1.0},
    "half AR 0.95": {"scale": 0.01, "phi": 0.95, "common": 0.5},
    "3 % a minute": {"scale": 0.01, "drift": per_second(3, 60)},
    "1 % a second, AR 0.8": {"scale": 0.01, "phi": 0.8, "common": 0.5, "drift": 0.01},
}


def told(repeats: int, seed: int) -> Iterator[Figure]:
    """Searches with finals on machines of known truth: coverage, optimism and regret of what they tell."""
    pooled = []
    for number, (kind, machine) in enumerate(MACHINES.items()):
        found = np.array([end_to_end(np.random.default_rng([seed, number, one]), machine) for one in range(repeats)])
        covered, flattery, losses = found.T
        pooled.append(float(covered.mean()))
        yield covering(f"finals, {kind}", pooled[-1])
        yield below("optimism of the reported time", f"finals, {kind}", float(flattery.mean()), 0.01)
        yield below("regret of the choice, mean", f"finals, {kind}", float(losses.mean()), 0.002)
        yield below("regret of the choice, p95", f"finals, {kind}", float(np.quantile(losses, 0.95)), 0.005)
    yield covering("finals, pooled", fmean(pooled))


def end_to_end(generator: np.random.Generator, kind: dict[str, Any]) -> tuple[float, float, float]:
    """One search and its finals: whether the interval held, how far the median flattered, what the choice lost."""
    machine = Machine(generator, **kind)
    truth: dict[Contender, float] = {launch(one): 1e-3 * (1 + 0.5 * generator.random()) for one in range(30)}
    on = Synthetic(machine, truth)
    final = finals(on.search(on.truth), launch(0), launches, on, PROBLEM, 1.0, 0)
    assert final is not None  # noqa: S101  every config was measured
    best, timing = truth[launch(final.best.config["number"])], final.best.timing
    assert timing.ci95_ms is not None  # noqa: S101  a report has samples
    then = 1e3 * best * np.exp(machine.drift * (on.began + machine.now) / 2)
    held = timing.ci95_ms[0] <= then <= timing.ci95_ms[1]
    return float(held), 1 - timing.median_ms / then, best / min(truth.values()) - 1


DETECTED: dict[str, dict[str, Any]] = {
    "white": {},
    "heavy": {"tail": 3},
    "AR 0.5": {"phi": 0.5, "common": 1.0},
    "AR 0.9": {"phi": 0.9, "common": 1.0},
    "half AR 0.95": {"phi": 0.95, "common": 0.5},
    "3 % a minute": {"drift": per_second(3, 60)},
}


def detector(repeats: int, seed: int) -> Iterator[Figure]:
    """How often a quiet machine is refused, and a slow-down by a tenth seen, by kind and scale of noise."""
    for kind, machine in DETECTED.items():
        for scale in (0.002, 0.01, 0.02, 0.04):
            where = f"{kind}, {100 * scale:g} %"
            generator = np.random.default_rng([seed, int(1e4 * scale)])
            quiet, watch = Machine(generator, scale, **machine), DriftDetector()
            yield below("quiet checks refused", where, fmean(check(quiet, watch) for _ in range(10 * repeats)), 0.01)
            for what, checks in (("burst of 10 % seen", 1), ("step by 10 % seen", 5)):
                seen = fmean(seeing(Machine(generator, scale, **machine), checks) for _ in range(repeats))
                yield above(what, where, seen, 0.95) if scale <= 0.02 else Figure(what, where, seen)


def check(machine: Machine, watch: DriftDetector) -> bool:
    """One check, 50 ms after the last."""
    machine.now += 0.05
    return watch.disturbed(machine.kernel(1e-3))


def seeing(machine: Machine, checks: int) -> float:
    """The share of so many checks refused, made while a machine that was watched for a while is 10 % slower."""
    watch = DriftDetector()
    for _ in range(20 + int(machine.generator.integers(60))):
        check(machine, watch)
    machine.slow = slower(machine.now, inf)
    return fmean(check(machine, watch) for _ in range(checks))


def synthetic(seed: int) -> Recording:
    """A space of 3000 configs, few of them near the best, on a noisy device that boosts its first launches."""
    generator = np.random.default_rng(seed)
    outcomes: dict[Config, tuple[float, ...] | Rejected] = {}
    for number in range(3000):
        factors = np.exp(0.01 * generator.standard_t(4, FIXED))
        factors[: int(generator.integers(2, 8))] *= 0.92
        seconds = 1e-3 * (1 + generator.gamma(2.0, 0.6)) * factors
        outcomes[Config((("number", number),))] = tuple(seconds.tolist())
    limits = Limits(1024, 49152, 32, 80, 9e11, 3e13, 5e11)
    device = Device("cuda:0", "cuda", "synthetic", "", "", "", "", "", 2**34, limits)
    return Recording(device, "synthetic", "", Problem(1024, 1024, 1024), "events", outcomes)


def spaces(paths: Sequence[Path], seed: int) -> Iterator[Recording]:
    """The recordings named, or what there is; those with too few timed configs to tell anything are left out."""
    for path in paths or sorted(DATA.glob("*.replay*")):
        for recording in recordings(path):
            if len(measured(recording)) >= TOP:
                yield recording
            else:
                print(f"{path} {name(recording)}: under {TOP} configs of {FIXED} samples, left out")
    if not paths:
        yield synthetic(seed)


def main() -> None:
    """Print every figure with its bar as it comes, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    repeats, seed = arguments.repeats, arguments.seed
    found: list[Figure] = []
    for figures in parts(list(spaces(arguments.paths, seed)), repeats, seed):
        for figure in figures:
            mark = "" if figure.met is None else "met" if figure.met else "MISSED"
            print(f"{figure.what:32} {figure.figure:9.5f}  {figure.bar or '':14} {mark:7} {figure.where}", flush=True)
            found.append(figure)
    report = {"repeats": repeats, "seed": seed, "figures": [asdict(figure) for figure in found]}
    RESULT.write_text(json.dumps(report, indent=1) + "\n")


def parts(whole: Sequence[Recording], repeats: int, seed: int) -> Iterator[Iterator[Figure]]:
    """All figures, those of recordings first; the dearer ones of fewer repeats."""
    for recording in whole:
        yield racing(recording, max(10, repeats // 5), seed)
        yield regret(recording, max(10, repeats // 5), seed)
        yield tuned(recording, max(1, repeats // 50), seed)
    yield coverage(repeats, seed)
    yield told(max(10, repeats // 4), seed)
    yield detector(max(10, repeats // 4), seed)


if __name__ == "__main__":
    main()
