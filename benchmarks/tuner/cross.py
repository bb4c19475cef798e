"""Tune forty shapes of eight classes, then measure every shape's winner on every shape: what unseen.py reads.

    python -m benchmarks.tuner.cross OUT.jsonl [--device cuda] [--seconds 15] [--smaller] [--kernels tiled]
        [--until 500]

A line is appended as it comes, and the same command goes on where a stopped run was; a file is of one device and one
set of kernel texts. Its lines are objects, by their key "is":

device   first: "device" as kernels.device.Device, "digests" of the kernels searched
tuned    a shape's winner: "class", "sizes" [m, n, k, batch], "kernel", "config", "ms" as the tune told it
crossed  what every winner took on a shape, once all are tuned: "sizes", "policy", and "times", a list of "kernel",
         "config", "ms", "samples". Those within four times of the fastest, the shape's own winner among them, were
         sampled interleaved, in random order, on cold buffers; for the others "ms" is what showed them to be slow.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from app.devices.fleet import Unit, open_fleet
from app.errors import DeviceError
from app.services.best.kernel_order import covering
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport, Measured
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring.trial import FixtureKey
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem

Shapes = dict[str, tuple[tuple[int, ...], ...]]

# m, n, k and, where it is not one, batch. No two are within 1.5 times in every dimension; a good launch of any takes
# under a millisecond on an H200.
SHAPES: Shapes = {
    "square": ((256, 256, 256), (448, 448, 448), (768, 768, 768), (1280, 1280, 1280), (2048, 2048, 2048)),
    "small": ((16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 128), (96, 32, 160)),
    "skinny": ((1, 4096, 4096), (4, 2048, 2048), (8, 8192, 1024), (4096, 8, 4096), (2048, 16, 1024)),
    "wide or tall": ((8192, 128, 256), (16384, 64, 64), (128, 8192, 512), (64, 32768, 128), (4096, 256, 64)),
    "deep": ((64, 64, 8192), (128, 128, 4096), (32, 32, 16384), (256, 128, 8192), (16, 256, 12288)),
    "ragged": ((1000, 1200, 800), (333, 777, 555), (1537, 511, 129), (97, 1013, 2053), (2003, 301, 1001)),
    "batched": ((64, 64, 64, 64), (128, 128, 64, 96), (32, 32, 32, 512), (256, 256, 64, 16), (512, 64, 512, 12)),
    "mlp": ((32, 3072, 768), (128, 4096, 1024), (512, 2048, 512), (256, 8192, 2048), (1024, 4096, 1024)),
}
# The same classes for a processor.
SMALLER: Shapes = {
    "square": ((52, 52, 52), (88, 88, 88), (144, 144, 144), (232, 232, 232), (368, 368, 368)),
    "small": ((8, 8, 8), (16, 16, 16), (32, 32, 32), (24, 8, 40), (12, 40, 16)),
    "skinny": ((1, 1024, 1024), (2, 512, 2048), (4, 2048, 512), (1024, 2, 1024), (512, 8, 512)),
    "wide or tall": ((2048, 32, 64), (4096, 16, 32), (32, 2048, 128), (16, 8192, 32), (1024, 64, 16)),
    "deep": ((16, 16, 8192), (32, 32, 4096), (8, 8, 16384), (64, 32, 2048), (4, 64, 8192)),
    "ragged": ((100, 140, 60), (133, 277, 155), (397, 111, 49), (37, 313, 253), (301, 75, 251)),
    "batched": ((16, 16, 16, 64), (32, 32, 16, 96), (8, 8, 8, 512), (64, 64, 16, 16), (128, 16, 128, 12)),
    "mlp": ((8, 768, 192), (16, 1024, 256), (64, 512, 128), (32, 1536, 384), (128, 1024, 256)),
}
ROUNDS, CLOSE, SEED = 21, 4.0, 20261121


class Cross:
    """One device's file, and what is still to be written into it."""

    def __init__(self, unit: Unit, out: Path, kernels: list[str] | None) -> None:
        self.unit, self.out = unit, out
        covered = covering(Problem(256, 256, 256), unit.device)
        self.kernels: list[Kernel] = [kernel for kernel in covered if kernels is None or kernel.name in kernels]
        self.lines = whole_lines(out)
        head = {
            "is": "device",
            "device": asdict(unit.device),
            "digests": {one.name: one.digest for one in self.kernels},
        }
        if not self.lines:
            self._append(head)
        if self.lines[0]["digests"] != head["digests"]:
            raise SystemExit(f"{out} is of other kernel texts")

    def tune_all(self, shapes: Shapes, seconds: float) -> Iterator[str]:
        """Tune what is not tuned yet; yields what was found."""
        done = {tuple(line["sizes"]) for line in self.lines if line["is"] == "tuned"}
        for name, sizes in ((name, sizes) for name, group in shapes.items() for sizes in group):
            problem = problem_of(sizes)
            if sizes_of(problem) not in done:
                best = self._tuned(problem, seconds)
                found = {"kernel": best.kernel, "config": dict(best.config), "ms": best.timing.median_ms}
                self._append({"is": "tuned", "class": name, "sizes": sizes_of(problem), **found})
                yield f"{name:12} {problem.key:44} {best.timing.median_ms:9.4f} ms {best.kernel} {best.config}"

    def cross_all(self) -> Iterator[str]:
        """Measure every winner where that is not done yet; yields the shapes."""
        tuned = [line for line in self.lines if line["is"] == "tuned"]
        done = {tuple(line["sizes"]) for line in self.lines if line["is"] == "crossed"}
        winners = {(line["kernel"], CATALOGUE[line["kernel"]].space.config(line["config"])) for line in tuned}
        for line in tuned:
            if tuple(line["sizes"]) not in done:
                problem = problem_of(line["sizes"])
                launches = [self._launch(*winner, problem) for winner in sorted(winners, key=str)]
                policy, times = self._crossed(problem, [launch for launch in launches if launch])
                self._append({"is": "crossed", "sizes": line["sizes"], "policy": policy, "times": times})
                yield f"{line['class']:12} {problem.key:44} {len(times)} winners"

    def _tuned(self, problem: Problem, seconds: float) -> Measured:
        task = Task(self.kernels, problem, self.unit.device, "auto", SEED)
        for outcome in tune(task, self._runner("tune", problem), lambda: Budget(seconds=seconds)):
            if isinstance(outcome, FinalReport):
                return outcome.best
        raise RuntimeError(f"nothing of {problem.key} could be measured")

    def _crossed(self, problem: Problem, launches: list[Launch]) -> tuple[str, list[dict[str, Any]]]:
        """The policy, and a row for each winner that this shape allows and that answered right."""
        runner = self._runner("cross", problem)
        for launch in launches:
            runner.prepare(launch)
        measured: dict[int, Measured] = {}
        for place, launch in enumerate(launches):
            best = min((one.timing.median_ms / 1e3 for one in measured.values()), default=None)
            outcome = runner.attempt(launch, best)
            if isinstance(outcome, Measured):
                measured[place] = outcome
        fastest = min(one.timing.median_ms for one in measured.values())
        close = [place for place, one in measured.items() if one.timing.median_ms <= CLOSE * fastest]
        sample_interleaved = runner.sample([launches[place] for place in close], ROUNDS)
        taken = dict(zip(close, sample_interleaved.seconds, strict=True))
        rows = []
        for place, one in measured.items():
            ms = 1e3 * median(taken[place]) if place in taken else one.timing.median_ms
            samples = len(taken[place]) if place in taken else one.timing.samples
            rows.append({"kernel": one.kernel, "config": dict(one.config), "ms": ms, "samples": samples})
        return sample_interleaved.policy, rows

    def _launch(self, kernel: str, config: Any, problem: Problem) -> Launch | None:
        space = CATALOGUE[kernel].space
        legal = space.refusal(config, problem, self.unit.device) is None
        return CATALOGUE[kernel].launch(config, problem, self.unit.device) if legal else None

    def _runner(self, what: str, problem: Problem) -> TrialRunner:
        return TrialRunner(self.unit, FixtureKey(what, problem, SEED), lambda: False, lambda _: None)

    def _append(self, line: dict[str, Any]) -> None:
        self.lines.append(json.loads(json.dumps(line)))
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def problem_of(sizes: Sequence[int]) -> Problem:
    """The float32 problem of m, n, k and, where it is not one, batch."""
    m, n, k, *batch = sizes
    return Problem(m, n, k, batch[0] if batch else 1)


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """What a file holds; a last line that was cut off is taken out of it."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def sizes_of(problem: Problem) -> tuple[int, int, int, int]:
    """A problem's sizes: m, n, k and batch."""
    return problem.m, problem.n, problem.k, problem.batch


def main() -> None:
    """Tune, then cross, until all is done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each tune")
    parser.add_argument("--smaller", action="store_true", help="the shapes for a processor")
    parser.add_argument("--kernels", nargs="+", help="by default all that compute float32")
    parser.add_argument("--until", type=float, default=1e6, help="stop after so many seconds")
    options = parser.parse_args()
    end = time.monotonic() + options.until
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as cache, open_fleet(options.device, Path(cache), 2**26) as fleet:
        cross = Cross(fleet.unit(), options.out, options.kernels)
        for step in (cross.tune_all(SMALLER if options.smaller else SHAPES, options.seconds), cross.cross_all()):
            try:
                for line in step:
                    print(line, flush=True)
                    if time.monotonic() > end:
                        print("time is over: the same command goes on from here", flush=True)
                        return
            except DeviceError as error:
                raise SystemExit(f"{error.message}; the same command goes on from here") from error


if __name__ == "__main__":
    main()
