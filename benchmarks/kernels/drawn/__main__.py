"""Shapes that nobody chose: drawn by a seed that is new in each run, and measured beside the fastest of all peers.

    python -m benchmarks.kernels.drawn OUT.jsonl [--seed N] [--rows NAME ...] [--each 24] [--until 480] [--seconds 4]
        [--part I/N] [--measuring 0.6] [--device cuda] [--cache FOLDER] [--trials FILE.jsonl] [--list]

shapes.py says what is drawn: layers of public models, any sizes, thin sides, thin k, batches. Each shape is tuned
for `--seconds`, as a user's would be but without the two kernels that only teach; then that config, the untuned
default, cuBLAS's default, cuBLASLt's candidates (its first 8; on every fourth shape of a row all that its heuristics
give, 128 at most) and Triton (12 configs at most: a tile a program, persistent programs, k in slices) are verified and
sampled in turn, in random order, on cold rotating buffers. Triton's binaries are compiled before the shape is tuned,
while the one before is sampled: no tune shares the host's cores with them. What comes out below 0.92 of the fastest
peer is measured once more. Trials are forecast as the service does, by what those of earlier shapes took. Before the
first shape a product of 512x512x512 is tuned, of which nothing is kept: the first tune of a process pays for the
process's start.

Without `--seed` one is drawn, and the first line of OUT tells it. A line is appended as it comes, and the same command
goes on where a stopped run was, with OUT's seed. `--rows` and `--until` cut a run into pieces, and `--part 0/4` takes
every fourth shape, so that each GPU of a host has its own: drawn_table.py puts pieces of one seed together. `--trials`
keeps what every config took that a tune tried and when that was known, and `--list` shows what would be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from app.devices.fleet import Unit, open_fleet
from app.devices.process import CallLimit
from app.errors import DeviceError, Unsupported
from app.services.best.kernel_order import default_launch, searched, untuned
from app.services.tuning.forecast import TrialForecasts
from app.services.tuning.progress import LATE
from app.services.tuning.search_workers import SearchWorkers, search_processes
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport, Measured, Outcome, Rejected
from app.tuning.search.search_task import StrategyFactory, make_strategy
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring.trial import FixtureKey
from benchmarks.kernels.drawn.shapes import BY_NAME, ROWS, Drawn, shapes
from benchmarks.kernels.drawn.triton import Binaries, chosen
from benchmarks.kernels.peers.__main__ import PREPARING, head_of
from benchmarks.kernels.peers.contest import Contest, contest
from benchmarks.kernels.peers.contestants import Absent, Candidates, Contestant, Library, Ours, TritonTiles
from benchmarks.kernels.peers.rows import Ratio, Row, ratio_to, row_of
from benchmarks.kernels.peers.shapes import CANDIDATE, DEFAULT, TRITON, TUNED, VENDOR, ShapeClass
from benchmarks.kernels.peers.triton import Order, compilers, installed, orders
from benchmarks.report.peer_table import cells
from benchmarks.tuner.cross import whole_lines
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem

FIRST, ALL = 8, 128  # of cuBLASLt's candidates
EVERY: Final = 4  # which shape of a row is tried with all
AGAIN: Final = 0.92  # of the fastest peer's speed: what is slower is measured twice
TEACHING: Final = ("naive", "tiled")
UNKEPT: Final = Problem(512, 512, 512)  # which is tuned first
PEERS: Final = (VENDOR, CANDIDATE, TRITON)


@dataclass(frozen=True, slots=True)
class Searched:
    """How a shape was tuned: the winner, what the configs came to that were tried, and in how many seconds.

    `at` are the seconds from its start to each outcome, and to the phases by their names.
    """

    winner: Launch | None
    outcomes: tuple[Outcome, ...]
    seconds: float
    at: tuple[float, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """One device and Triton's binaries (None: it is not installed); measures shapes.

    `trials` is where what a tune tried is kept; `forecasts` learn from each.
    """

    unit: Unit
    seed: int
    seconds: float
    measuring: float
    binaries: Binaries | None
    trials: Path | None = None
    factory: StrategyFactory = make_strategy
    forecasts: TrialForecasts = field(default_factory=TrialForecasts)

    def begin(self) -> None:
        """Tune once and keep nothing of it, not even for forecasts: the process's start is in all that it took."""
        replace(self, forecasts=TrialForecasts()).searched(UNKEPT)

    def line(self, shape: Drawn, following: Drawn | None = None) -> tuple[dict[str, Any], Row]:
        """Tune a shape and measure everybody, while what the following one needs is compiled; raises DeviceError."""
        triton = self._triton(shape.problem)  # waits for its binaries
        found = self.searched(shape.problem)
        if following is not None:
            self.prepare(following)
        if self.trials is not None:
            append(self.trials, trials_of(shape.problem, found))
        contestants = self.contestants(shape, found.winner, triton)
        result = self.contest(shape.problem, contestants)
        row = row_of(ShapeClass(shape.row, BY_NAME[shape.row].bar, "", ()), shape.problem, result, self.unit.device)
        slow = row.to_fastest is not None and row.to_fastest.high < AGAIN
        again = ratio_to(self.contest(shape.problem, contestants).results, PEERS) if slow else None
        told = {"number": shape.number, "layer": shape.layer, "exhaustive": is_exhaustive(shape)}
        tuning = {"trials": len(found.outcomes), "tuning_seconds": found.seconds}
        return told | tuning | {"untuned": _told(untuned_ratio(result)), "again": _told(again)} | row.json(), row

    def prepare(self, shape: Drawn) -> None:
        """Have what is sure to be needed of a shape compiled, and return at once."""
        if self.binaries is not None:
            self.binaries.start(self._orders(shape.problem))

    def searched(self, problem: Problem) -> Searched:
        """Tune a shape with forecasts that learn, as the service does; before, the device is calibrated if need be."""
        device, tried, at = self.unit.device, list[Outcome](), list[float]()
        every = [one for one in searched(problem, device) if one.name not in TEACHING]
        self.forecasts.needed(self.unit, problem, every, self.seconds)
        learn, forecast = partial(self.forecasts.learn, device), partial(self.forecasts.of, device)
        task = Task(every, problem, device, "auto", self.seed, forecast=forecast, factory=self.factory)
        winner, phases, started = None, list[tuple[str, float]](), time.monotonic()
        end = CallLimit(started + self.seconds, started + self.seconds + LATE)

        def enter(phase: str) -> None:
            phases.append((phase, time.monotonic() - started))

        runner = TrialRunner(self.unit, self._key(problem), lambda: False, enter, lambda: end, learn)
        try:
            for outcome in tune(task, runner, lambda: Budget(seconds=self.seconds)):
                if isinstance(outcome, FinalReport):
                    winner = CATALOGUE[outcome.best.kernel].launch(outcome.best.config, problem, device)
                else:
                    tried.append(outcome)
                    at.append(time.monotonic() - started)
        finally:
            runner.abandon()
            if runner.proving:
                self.forecasts.proved(device, runner.proving)
        return Searched(winner, tuple(tried), time.monotonic() - started, tuple(at), tuple(phases))

    def contestants(self, shape: Drawn, winner: Launch | None, triton: Contestant) -> tuple[Contestant, ...]:
        """Our winner, or what is taken where the tune ended without one; our default, and all peers."""
        problem = shape.problem
        candidates = Candidates(asked=ALL if is_exhaustive(shape) else FIRST)
        ours = Ours(TUNED, winner) if winner else self._default(TUNED, problem)
        return ours, self._default(DEFAULT, problem), Library(VENDOR), candidates, triton

    def contest(self, problem: Problem, contestants: Sequence[Contestant]) -> Contest:
        """Everybody in turn."""
        arguments = self._key(problem), contestants, self.measuring
        found: Contest = self.unit.trials.call(contest, *arguments, deadline=PREPARING)
        return found

    def _default(self, name: str, problem: Problem) -> Contestant:
        try:
            return Ours(name, first_default(problem, self.unit))
        except Unsupported as refusal:
            return Absent(name, refusal.message)

    def _triton(self, problem: Problem) -> Contestant:
        if self.binaries is None:
            return Absent(TRITON, "Triton is not here")
        return TritonTiles(self.binaries.ready(self._orders(problem)))

    def _orders(self, problem: Problem) -> list[Order]:
        device = self.unit.device
        return orders(problem, device.architecture, chosen(problem, device))

    def _key(self, problem: Problem) -> FixtureKey:
        return FixtureKey("drawn", problem, self.seed)


def first_default(problem: Problem, unit: Unit) -> Launch:
    """What an untuned product is made by; raises Unsupported where there is nothing."""
    reasons: list[str] = []
    kernels = untuned(problem, unit.device)
    for kernel in kernels:
        try:
            return default_launch(kernel, problem, unit.device)
        except Unsupported as refusal:
            reasons.append(refusal.message)
    raise Unsupported("; ".join(reasons))


def is_exhaustive(shape: Drawn) -> bool:
    """Whether all of cuBLASLt's candidates are tried."""
    return shape.number % EVERY == EVERY - 1


def trials_of(problem: Problem, found: Searched) -> dict[str, Any]:
    """What every config took that was measured, what became of the others, and when each was known."""
    timed = [one for one in found.outcomes if isinstance(one, Measured)]
    failed = [one for one in found.outcomes if isinstance(one, Rejected)]
    return {
        "problem": problem.key,
        "measured": [[one.kernel, dict(one.config), one.timing.median_ms] for one in timed],
        "rejected": [[one.kernel, dict(one.config), one.stage, one.reason] for one in failed],
        "at": [round(each, 3) for each in found.at],
        "phases": {name: round(each, 3) for name, each in found.phases},
    }


def untuned_ratio(found: Contest) -> Ratio | None:
    """The default's time over the tuned one's; 1 where they are one config."""
    ours = {one.name: (one.kernel, one.config) for one in found.results if one.seconds}
    if TUNED in ours and ours[TUNED] == ours.get(DEFAULT):
        return Ratio(DEFAULT, 1.0, 1.0, 1.0)
    return ratio_to(found.results, (DEFAULT,))


def _told(ratio: Ratio | None) -> dict[str, Any] | None:
    return None if ratio is None else asdict(ratio)


def begun(out: Path, seed: int | None) -> tuple[int, list[dict[str, Any]]]:
    """The seed and what OUT has; a new seed where OUT is new. Raises SystemExit where it is of another seed."""
    lines = whole_lines(out)
    known: int | None = lines[0]["seed"] if lines else None
    if None not in {known, seed} and known != seed:
        raise SystemExit(f"{out} is of seed {known}")
    chosen_seed = known if known is not None else seed
    return secrets.randbelow(2**31) if chosen_seed is None else chosen_seed, lines


def measured(bench: Bench, left: Sequence[Drawn], end: float) -> Iterator[dict[str, Any]]:
    """Lines of shapes until the time is over; one that takes the device down is told, and has no line."""
    for place, shape in enumerate(left):
        if time.monotonic() > end:
            print("time is over: the same command goes on from here", flush=True)
            return
        started = time.monotonic()
        try:
            line, row = bench.line(shape, left[place + 1] if place + 1 < len(left) else None)
        except DeviceError as error:
            print(f"{shape.row} {shape.number} {shape.problem}: {error.message}", flush=True)
            continue
        spent = f"{time.monotonic() - started:.1f} s, {line['trials']} trials in {line['tuning_seconds']:.1f}"
        fastest = f"{row.to_fastest.ratio:.3f} to {row.to_fastest.to}" if row.to_fastest else "-"
        untuned_by = f"untuned {line['untuned']['ratio']:.2f}" if line["untuned"] else "-"
        print(*cells(row)[:9], fastest, untuned_by, line["layer"] or "", spent, flush=True)
        yield line


def run(options: argparse.Namespace, cache: Path, end: float) -> bool:
    """Measure what OUT does not have; False where something is left."""
    seed, lines = begun(options.out, options.seed)
    print(f"seed {seed}", flush=True)
    with (
        open_fleet(options.device, cache, 2**26) as fleet,
        closing(SearchWorkers(search_processes(fleet.units))) as own,
    ):
        unit = fleet.unit()
        own.start()
        head = {**head_of(unit), "seed": seed, "seconds": options.seconds, "measuring": options.measuring}
        if not lines:
            append(options.out, head)
        elif any(lines[0][name] != head[name] for name in ("model", "digests")):
            raise SystemExit(f"{options.out} is of another device or of other kernel texts")
        done = {(line["shape_class"], line["number"]) for line in lines[1:]}
        every = listed(options, seed)
        left = [shape for shape in every if (shape.row, shape.number) not in done]
        triton = installed() is not None and unit.device.platform == "cuda"
        with compilers(len(os.sched_getaffinity(0))) if triton else nullcontext() as pool:
            binaries = Binaries(cache, pool) if pool else None
            how = options.seconds, options.measuring, binaries, options.trials, own.factory(unit.device.id)
            bench = Bench(unit, seed, *how)
            count = 0
            if left:
                bench.begin()
            for line in measured(bench, left, end):
                append(options.out, line)
                count += 1
            if pool:
                pool.shutdown(cancel_futures=True)
    return count == len(left)


def listed(options: argparse.Namespace, seed: int) -> list[Drawn]:
    """What this run's part of the seed's shapes is."""
    first, step = options.part
    return shapes(seed, options.rows, options.each)[first::step]


def part(text: str) -> tuple[int, int]:
    """I/N: every Nth shape from the Ith on; raises ValueError where I is not below N."""
    first, step = (int(number) for number in text.split("/"))
    if not 0 <= first < step:
        raise ValueError(text)
    return first, step


def append(out: Path, line: dict[str, Any]) -> None:
    """Add a line to a file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, help="by default OUT's, or a new one")
    parser.add_argument("--rows", nargs="+", choices=list(BY_NAME), default=[row.name for row in ROWS], metavar="NAME")
    parser.add_argument("--each", type=int, default=24, help="shapes of every row")
    parser.add_argument("--part", type=part, default=(0, 1), metavar="I/N", help="every Nth shape from the Ith on")
    parser.add_argument("--until", type=float, default=1e6, help="begin no shape after so many seconds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each tune")
    parser.add_argument("--measuring", type=float, default=0.6, help="seconds of rounds a shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cache", type=Path, help="compiled kernels, kept from run to run")
    parser.add_argument("--trials", type=Path, help="append what every config of a tune took")
    parser.add_argument("--list", action="store_true", help="only say what is drawn")
    return parser.parse_args()


def main() -> None:
    """Measure what is left, and end with 1 where something still is."""
    options, started = parsed(), time.monotonic()
    if options.list:
        seed, _ = begun(options.out, options.seed)
        print(f"seed {seed}")
        for shape in listed(options, seed):
            print(shape.row, shape.number, shape.problem, shape.layer or "")
        return
    with TemporaryDirectory() as fresh:
        complete = run(options, options.cache or Path(fresh), started + options.until)
    raise SystemExit(0 if complete else 1)


if __name__ == "__main__":
    main()
