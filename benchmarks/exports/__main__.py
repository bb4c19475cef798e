"""Each winner taken away as each target: whether it is right, as fast as /best-config says, and cheap to call.

    python -m benchmarks.exports [--out FILE.json] [--device cuda] [--seconds 6] [--until 235] [--kernels NAME ...]
        [--targets NAME ...] [--folder FOLDER]

Tunes a problem of each kernel with that kernel alone for `--seconds`, takes the winner as every target, and builds all
that is to be built meanwhile. When the service is closed, each target's check runs, whose own timing loop stands beside
what /best-config said; then a call is timed on the host; last comes torch, which is slow to start, both operators also
under torch.compile. Bars: a time within 5 % of /best-config's over 50 us, within 2 us below; a call of c, cpp and
cuda-core in at most 4.5 us where the winner has one launch without tensor maps. All of it ends within a few seconds of
`--until`: what is not done by then is left out, and told, and what fails is a row with its reason. A target whose tools
are not installed is told as absent. Rust and torch have the timing loop of c. Writes OUT after every step.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from app.main import opened
from app.settings import Settings
from benchmarks.exports.overhead import Overhead, overheads
from benchmarks.exports.table import calls_table, kept, text, within
from benchmarks.exports.targets import STEPS, Said, run, settled
from benchmarks.exports.winners import PROBLEMS, Taken, asked, found, taken

RESULT: Final = Path("benchmarks/results/exports/exports.json")
BUILDING: Final = 150.0  # seconds for a target's commands: a C++ extension of PyTorch takes half a minute
CHECKING: Final = 120.0  # for each command of a check: PyTorch compiles for some of them
WORKERS: Final = 8
CALLS: Final = "calls"  # what is built beside the targets
Builds = dict[tuple[str, str], Future[Said]]


class Report:
    """What was found, as it is written after every step."""

    def __init__(self, out: Path, head: dict[str, Any]) -> None:
        self._out = out
        self.found: dict[str, Any] = {**head, "winners": [], "checks": [], "calls": [], "left_out": []}

    def add(self, part: str, row: dict[str, Any] | str) -> None:
        """Add a row, and write all."""
        self.found[part].append(row)
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._out.write_text(json.dumps(kept(self.found), indent=1) + "\n", encoding="utf-8")


def take_all(
    options: argparse.Namespace, folder: Path, ends: tuple[float, float], pool: ThreadPoolExecutor
) -> tuple[Report, Any]:
    """Tune and take every winner, and have it built in the pool; gives the report, the winners, the builds.

    `ends` are the moments after which nothing is tuned, and nothing is built.
    """
    present = [name for name in options.targets if not STEPS[name].lacking]
    settings = Settings(data_dir=folder / "data", devices=options.device, slab_bytes=2**28)
    winners, builds = list[Taken](), Builds()
    with opened(settings, "a benchmark") as service:
        device = service.fleet.unit(None).device
        report = Report(options.out, {"device": device.name, "environment": device.environment})
        report.found["absent"] = {name: STEPS[name].lacking for name in options.targets if STEPS[name].lacking}
        for kernel in asked(service, options.kernels):
            if time.monotonic() > ends[0]:
                report.add("left_out", f"the tune of {kernel}")
                continue
            try:
                won = taken(service, found(service, kernel, options.seconds), present, folder)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other kernels are measured
                report.add("left_out", f"the tune of {kernel}: {type(error).__name__}: {error}")
                continue
            winners.append(won)
            facts = asdict(won.winner) | {"problem": str(won.winner.problem), "refused": won.refused}
            report.add("winners", {**facts, "targets": list(won.folders)})
            print(f"{won.winner.name}: {won.winner.best_ms} ms, {won.winner.match}", flush=True)
            _submit(pool, won, builds, ends[1])
    return report, (winners, builds)


def _submit(pool: ThreadPoolExecutor, won: Taken, builds: Builds, end: float) -> None:
    """Have all of a winner built; what times its calls is beside the target cpp, and apart from its build."""
    kernel = won.winner.kernel
    for target, place in won.folders.items():
        builds[kernel, target] = pool.submit(run, STEPS[target].builds, place, BUILDING, end)
    if "cpp" in won.folders:
        place = won.folders["cpp"]
        builds[kernel, CALLS] = pool.submit(run, Overhead.builds(place), place, BUILDING, end)


def check_all(winners: Sequence[Taken], builds: Builds, targets: Sequence[str], report: Report, end: float) -> None:
    """Run the checks, target by target, so that whatever the time leaves out is the same of every winner."""
    for target in targets:
        for won in winners:
            if target not in won.folders:
                continue
            if time.monotonic() > end:
                report.add("left_out", f"{target} of {won.winner.name}")
                continue
            row = checked(won, target, builds[won.winner.kernel, target], end)
            report.add("checks", row)
            print(text([row]), flush=True)


def checked(won: Taken, target: str, build: Future[Said], end: float) -> dict[str, Any]:
    """The check of a target's folder."""
    said, winner = settled(build, end), won.winner
    if said.reason is None:
        said = run(STEPS[target].checks, won.folders[target], CHECKING, end)
    own_ms = said.values.get("median_ms")
    own_ms = own_ms if own_ms and own_ms > 0 else None  # the timing loop of C says -1 s where the driver refuses
    row: dict[str, Any] = {
        "kernel": winner.kernel,
        "problem": str(winner.problem),
        "target": target,
        "best_ms": winner.best_ms,
    }
    row |= {"own_ms": own_ms, "right": said.reason is None and said.values.get("right") is True}
    row |= {"reason": said.reason, "seconds": round(said.seconds, 2), "said": said.values}
    return row | {"within": within(own_ms, winner.best_ms)}


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each tune; 0: untuned, without a time")
    parser.add_argument("--until", type=float, default=235.0, help="seconds after which nothing is begun")
    parser.add_argument("--kernels", nargs="+", choices=list(PROBLEMS), default=[], help="by default all")
    parser.add_argument("--targets", nargs="+", choices=list(STEPS), help="by default all of the device's")
    parser.add_argument("--folder", type=Path, help="where exports are kept; it is emptied")
    options = parser.parse_args()
    options.targets = options.targets or [name for name in STEPS if (name == "opencl") == (options.device == "opencl")]
    return options


def measured(options: argparse.Namespace, folder: Path) -> Report:
    """All parts within the time."""
    started = time.monotonic()
    tuned, all_of_it = started + 0.5 * options.until, started + options.until
    with ThreadPoolExecutor(WORKERS) as pool:
        report, (winners, builds) = take_all(options, folder, (tuned, all_of_it), pool)
        checks = list(options.targets)
        first = [name for name in checks if name not in {"torch", "rust"}]
        check_all(winners, builds, first, report, all_of_it)
        calls = [(won, builds.get((won.winner.kernel, CALLS))) for won in winners]
        for row in overheads(calls, all_of_it):
            report.add("calls", row)
        check_all(winners, builds, [name for name in checks if name not in first], report, all_of_it)
        pool.shutdown(wait=False, cancel_futures=True)
    report.found["seconds"] = round(time.monotonic() - started, 1)
    return report


def main() -> None:
    """Measure, print the tables, and end with 1 where a bar is missed."""
    options = parsed()
    with TemporaryDirectory() as fresh:
        folder = options.folder or Path(fresh)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        report = measured(options, folder)
    report.add("left_out", f"nothing more; it took {report.found['seconds']} s")
    found = report.found
    print(f"\n{found['device']}; absent: {found['absent']}; left out: {found['left_out']}")
    print(text(found["checks"]), calls_table(found["calls"]), sep="\n")
    missed = [row for row in found["checks"] if not row["right"] or row["within"] is False]
    missed += [row for row in found["calls"] if row["met"] is False]
    print(f"{len(missed)} rows miss a bar")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
