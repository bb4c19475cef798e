"""Our kernels beside what a user would pick instead: cuBLAS, its best candidate, and Triton's autotuned matmul.

    python -m benchmarks.kernels.peers OUT.jsonl [--device cuda] [--seconds 15] [--winners FILE ...] [--until 480]
        [--classes NAME ...] [--shapes REGEX] [--kernels NAME ...] [--cache FOLDER] [--smaller] [--report FILE.json]
    python -m benchmarks.kernels.peers OUT.jsonl --compile --cache FOLDER      Triton's binaries alone, without a GPU
    python -m benchmarks.kernels.peers OUT.jsonl --show [--report FILE.json]   what OUT has, which takes no device

Of each shape are measured: our best config, tuned for `--seconds` or taken from earlier files (`--winners`: other OUTs,
what cross.py wrote, recordings; the last that knows the shape counts); the untuned default; the seeds' tiled, 32 x 32
on a GPU, and naive; the vendor's library; the fastest algorithm that cuBLASLt's heuristics propose; and the fastest of
Triton's tiles. Each is verified against float64, in the precision that the problem asks for; where that is emulated,
rivals and the seeds compute in strict float32, and Triton in its own three products of TF32. Then all are sampled in
turn, in random order, on rotating buffers with cold caches, short ones in CUDA graphs, for about `--measuring` seconds.

A line is appended to OUT as it comes, and the same command goes on where a stopped run was: on a machine that is lent
for ten minutes at a time, give `--until 480` and the same OUT as often as it takes; it ends with 1 while shapes are
left. OUT is of one device and one set of kernel texts. The classes and their bars stand in shapes.py beside this.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.devices.fleet import Unit, open_fleet
from app.errors import DeviceError, Unsupported
from app.services.best.kernel_order import searched, untuned
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport
from app.tuning.replay import load
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring.trial import FixtureKey
from benchmarks.kernels.peers.contest import Contest, contest
from benchmarks.kernels.peers.contestants import Absent, Candidates, Contestant, Library, Ours, TritonTiles
from benchmarks.kernels.peers.rows import Row, read_row, row_of
from benchmarks.kernels.peers.shapes import (
    CLASSES,
    DEFAULT,
    NAIVE,
    SMALLER,
    TILED,
    TRITON,
    TUNED,
    VENDOR,
    ShapeClass,
    named,
    strictly,
)
from benchmarks.kernels.peers.triton import Cubin, Order, compile_all, installed, orders
from benchmarks.report.peer_table import cells, text
from benchmarks.tuner.cross import problem_of, whole_lines
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem

SEED, ARCHITECTURE = 20261121, "sm_90"
TILE = 32  # the seeds' largest square tile, and their fastest on a GPU
PREPARING = 150.0  # seconds until the child names its first phase: it may have to be started
Winners = dict[Problem, tuple[str, dict[str, int]]]
Shape = tuple[ShapeClass, Problem]


@dataclass(frozen=True, slots=True)
class Peers:
    """One device, what is known of good configs, and Triton's binaries; measures shapes."""

    unit: Unit
    winners: Winners
    cubins: dict[Order, Cubin]
    seconds: float
    measuring: float
    kernels: tuple[str, ...] = ()

    def row(self, shape_class: ShapeClass, problem: Problem) -> Row:
        """Tune a shape where nothing is known of it, and measure everybody; raises DeviceError."""
        others = Library(VENDOR), Candidates(), self._triton(problem)
        contestants = self._tuned(problem), *self._untuned(problem), *others
        arguments = self._bench(problem), contestants, self.measuring
        found: Contest = self.unit.trials.call(contest, *arguments, deadline=PREPARING)
        return row_of(shape_class, problem, found, self.unit.device)

    def build(self, problems: Sequence[Problem]) -> None:
        """Have the binaries of all that needs no tuning made on all cores; what does not compile is told later."""
        known = [self._known(problem) for problem in problems]
        fixed = [each for problem in problems for each in self._untuned(problem) if isinstance(each, Ours)]
        launches = [*filter(None, known), *(each.launch for each in fixed)]
        for future in [self.unit.ahead(launch.build) for launch in launches]:
            future.exception()

    def _tuned(self, problem: Problem) -> Contestant:
        launch = self._known(problem) or (self._search(problem) if self.seconds else None)
        return Ours(TUNED, launch) if launch else Absent(TUNED, "nothing is known, and nothing was tuned")

    def _known(self, problem: Problem) -> Launch | None:
        """A winner of an earlier run; None where its kernel or the space has changed so that it is none any more."""
        kernel, config = self.winners.get(problem, (None, {}))
        try:
            own = CATALOGUE[kernel] if kernel else None
            return own.launch(own.space.config(config), problem, self.unit.device) if own else None
        except (KeyError, ValueError):
            return None

    def _search(self, problem: Problem) -> Launch | None:
        device = self.unit.device
        runner = TrialRunner(self.unit, self._bench(problem), lambda: False, lambda _: None)
        kernels = [one for one in searched(problem, device) if not self.kernels or one.name in self.kernels]
        if not kernels:
            return None
        task = Task(kernels, problem, device, "auto", SEED)
        for outcome in tune(task, runner, lambda: Budget(seconds=self.seconds)):
            if isinstance(outcome, FinalReport):
                return CATALOGUE[outcome.best.kernel].launch(outcome.best.config, problem, device)
        return None

    def _untuned(self, problem: Problem) -> tuple[Contestant, ...]:
        """The default of the kernel to take untuned, and the seeds' kernels."""
        seeds = {TILED: CATALOGUE["tiled"], NAIVE: CATALOGUE["naive"]}
        others = [self._default(name, kernel, strictly(problem)) for name, kernel in seeds.items()]
        try:
            first = next(untuned(problem, self.unit.device))
        except Unsupported as refusal:
            return Absent(DEFAULT, refusal.message), *others
        return self._default(DEFAULT, first, problem), *others

    def _default(self, name: str, kernel: Kernel, problem: Problem) -> Contestant:
        device, config = self.unit.device, kernel.default(problem, self.unit.device)
        if name == TILED and device.platform == "cuda":
            config = kernel.space.config({"BM": TILE, "BN": TILE, "BK": TILE})
        try:
            return Ours(name, kernel.launch(config, problem, device))
        except ValueError as refusal:
            return Absent(name, str(refusal))

    def _triton(self, problem: Problem) -> Contestant:
        if self.unit.device.platform != "cuda":
            return Absent(TRITON, "Triton has no such device")
        wanted = orders(problem, self.unit.device.architecture)
        cubins = tuple(self.cubins[order] for order in wanted if order in self.cubins)
        return TritonTiles(cubins) if cubins else Absent(TRITON, "Triton is not installed")

    def _bench(self, problem: Problem) -> FixtureKey:
        return FixtureKey("peers", problem, SEED)


def winners_of(paths: Sequence[Path]) -> Winners:
    """The best config of every problem in files that this script, cross.py or record.py wrote."""
    found: Winners = {}
    for path in paths:
        if ".replay" in path.name:
            for recording in load(path):
                best = min(recording.outcomes, key=lambda config: recording.seconds(config) or float("inf"))
                found[recording.problem] = recording.kernel, dict(best)
            continue
        for line in whole_lines(path):
            if line["is"] == "tuned":
                found[problem_of(line["sizes"])] = line["kernel"], line["config"]
            elif line["is"] == "shape" and (ours := read_row(line).of(TUNED)):
                found[read_row(line).problem] = ours.kernel, dict(ours.config)
    return found


def head_of(unit: Unit) -> dict[str, Any]:
    """A file's first line: the device and software, and the texts of the kernels."""
    return {
        "is": "run",
        "device": unit.device.name,
        "model": unit.device.model,
        "environment": unit.device.environment,
        "vendor": unit.vendor.name or unit.vendor.reason,
        "triton": installed() if unit.device.platform == "cuda" else None,
        "digests": {name: kernel.digest for name, kernel in CATALOGUE.items()},
    }


def chosen(options: argparse.Namespace) -> list[Shape]:
    """The shapes asked for, in the classes' order; raises SystemExit for a class that does not exist."""
    classes = SMALLER if options.smaller else CLASSES
    names = [one.name for one in classes]
    if unknown := set(options.classes or ()) - set(names):
        raise SystemExit(f"there is no class {', '.join(unknown)}; there are: {', '.join(names)}")
    kept = [one for one in classes if not options.classes or one.name in options.classes]
    every = [(one, problem) for one in kept for problem in one.problems]
    return [(one, problem) for one, problem in every if re.search(options.shapes, named(problem))]


def begun(out: Path, head: dict[str, Any]) -> list[Row]:
    """What OUT has, or a new OUT; raises SystemExit where it is of another device or of other kernels."""
    lines = whole_lines(out)
    if not lines:
        _append(out, head)
    elif any(lines[0][name] != head[name] for name in ("model", "digests")):
        raise SystemExit(f"{out} is of another device or of other kernel texts")
    return [read_row(line) for line in lines[1:]]


def binaries(shapes: Sequence[Shape], architecture: str, cache: Path) -> dict[Order, Cubin]:
    """Triton's binaries for shapes; none where it is not installed."""
    if installed() is None:
        return {}
    started = time.monotonic()
    wanted = {order for _, problem in shapes for order in orders(problem, architecture)}
    made = compile_all(sorted(wanted, key=repr), cache)
    failed = sum(cubin.reason is not None for cubin in made.values())
    print(f"Triton: {len(made)} binaries, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    return made


def measure(options: argparse.Namespace, cache: Path, end: float) -> bool:
    """Measure the shapes that OUT does not have; False where a shape failed or the time was over before the last."""
    with open_fleet(options.device, cache, 2**26) as fleet:
        unit = fleet.unit()
        done = {row.problem for row in begun(options.out, head_of(unit))}
        left = [shape for shape in chosen(options) if shape[1] not in done]
        gpu = unit.device.platform == "cuda"
        cubins = binaries(left, unit.device.architecture, cache) if gpu else {}
        known = winners_of(options.winners)
        peers = Peers(unit, known, cubins, options.seconds, options.measuring, tuple(options.kernels))
        peers.build([problem for _, problem in left])
        measured = 0
        for row in rows(peers, left, end):
            _append(options.out, row.json())
            print(*cells(row), flush=True)
            measured += 1
    return measured == len(left)


def rows(peers: Peers, shapes: Sequence[Shape], end: float) -> Iterator[Row]:
    """Rows of the shapes until the time is over; one that takes the device down is told and left out."""
    for shape_class, problem in shapes:
        if time.monotonic() > end:
            print("time is over: the same command goes on from here", flush=True)
            return
        try:
            yield peers.row(shape_class, problem)
        except DeviceError as error:
            print(f"{shape_class.name} {named(problem)}: {error.message}", flush=True)


def report(out: Path) -> dict[str, Any]:
    """All of OUT as one object."""
    head, *lines = whole_lines(out)
    facts = {name: head[name] for name in ("device", "environment", "vendor", "triton")}
    return facts | {"shapes": [{name: value for name, value in line.items() if name != "is"} for line in lines]}


def _append(out: Path, line: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smaller", action="store_true", help="the shapes for a processor")
    parser.add_argument("--classes", nargs="+", help="by default all")
    parser.add_argument("--shapes", default="", help="a pattern that a shape's name has, such as ^4096x")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each tune; 0: only what --winners know")
    parser.add_argument("--kernels", nargs="+", default=[], help="that are tuned; by default all that suit the shape")
    parser.add_argument("--winners", type=Path, nargs="+", default=[], help="files of earlier runs")
    parser.add_argument("--measuring", type=float, default=1.5, help="seconds of rounds a shape")
    parser.add_argument("--until", type=float, default=1e6, help="begin no shape after so many seconds")
    parser.add_argument("--cache", type=Path, help="compiled kernels, kept from run to run")
    parser.add_argument("--report", type=Path, help="write all that OUT has as one JSON object")
    parser.add_argument("--compile", action="store_true", help="compile Triton's binaries and end")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    return parser.parse_args()


def main() -> None:
    """Measure what is left, show all, and fail where something is still left."""
    options, started = parsed(), time.monotonic()
    complete = True
    with TemporaryDirectory() as fresh:
        if options.compile:
            binaries(chosen(options), ARCHITECTURE, options.cache or Path(fresh))
            return
        if not options.show:
            complete = measure(options, options.cache or Path(fresh), started + options.until)
    print(text([read_row(line) for line in whole_lines(options.out)[1:]]))
    if options.report:
        options.report.write_text(json.dumps(report(options.out)) + "\n", encoding="utf-8")
    raise SystemExit(0 if complete else 1)


if __name__ == "__main__":
    main()
