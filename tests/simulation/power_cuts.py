"""Cuts of power: a service's file system calls are recorded once, and its disk is replayed up to many moments of them.

`python -m tests.simulation.power_cuts --cuts 10000 --seed 7 --out FILE` writes how many cuts there were, and which
failed. Half of them are at a sync, before or within it; the others anywhere. A failure names its number: `--only
NUMBER` with the same recording (`--record FOLDER`, kept) does that one again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Final

from tests.simulation.acknowledged import expect, expect_resumed, facts
from tests.simulation.disk import Cut, Disk
from tests.simulation.system_calls import Moment, moments, record

SYNCS: Final = frozenset({"fsync", "fdatasync"})
_SHM: Final = "-shm"
_SHARE: Final = 100  # cuts that a process is given at once


@dataclass(frozen=True, slots=True)
class Recording:
    """The moments of a run, with the folder of its data and its log of what was acknowledged."""

    folder: Path
    moments: tuple[Moment, ...]

    @classmethod
    def made(cls, folder: Path, cache: Path, shapes: int) -> Recording:
        """Record a run, unless the folder has one."""
        disk, log, calls = folder / "disk", folder / "log", folder / "calls"
        if not calls.exists():
            disk.mkdir(parents=True)
            arguments = ["-m", "tests.simulation.recorded_service", str(disk / "data"), str(log), str(shapes)]
            record(arguments, calls, {"TILEWISE_CACHE_DIR": str(cache)})
        return cls(folder, tuple(moments(calls, disk, log)))

    def is_acknowledgement(self, moment: Moment) -> bool:
        """Whether a moment is the beginning of a line of what was acknowledged."""
        call = moment.call
        return call.name == "write" and call.path == str(self.folder / "log") and not moment.is_end

    def without(self, *names: str) -> Recording:
        """The recording of a service that made none of these calls."""
        return replace(self, moments=tuple(moment for moment in self.moments if moment.call.name not in names))

    def unfinished_tunes(self) -> list[int]:
        """Places after a tune job told of a trial and before it told its end: all but its last are of an open job."""
        places, tuning = list[int](), False
        for at, moment in enumerate(self.moments):
            if self.is_acknowledgement(moment):
                tuning = b'"kind": "trial"' in moment.call.texts[0]
            elif tuning:
                places.append(at)
        return places

    def cuts(self, rng: random.Random, count: int) -> list[int]:
        """Places in the moments before which power is cut: at every sync in turn, and as many anywhere."""
        everywhere = range(len(self.moments) + 1)
        at_syncs = [at + after for at, each in enumerate(self.moments) if each.call.name in SYNCS for after in (0, 1)]
        rng.shuffle(at_syncs)
        chosen = [at_syncs[number % len(at_syncs)] for number in range(count // 2)] if at_syncs else []
        return chosen + [rng.choice(everywhere) for _ in range(count - len(chosen))]


@dataclass
class Tally:
    """What came of cuts."""

    cuts: int = 0
    at_syncs: int = 0
    acknowledged: int = 0
    unfinished: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, object]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another's."""
        self.cuts += other.cuts
        self.at_syncs += other.at_syncs
        self.acknowledged += other.acknowledged
        self.unfinished += other.unfinished
        self.kinds += other.kinds
        self.failures += other.failures


def run(recording: Recording, cuts: Sequence[tuple[int, int]], seed: int, scratch: Path) -> Tally:
    """Do cuts, of (number, place), in the order of their places."""
    tally, disk, lines = Tally(), Disk(recording.folder / "disk"), list[bytes]()
    ordered = sorted(cuts, key=lambda cut: cut[1])
    for at in range(len(recording.moments) + 1):
        while ordered and ordered[0][1] == at:
            number, _ = ordered.pop(0)
            _cut(disk, lines, random.Random(f"{seed} {number}"), scratch / str(number), tally, number)
            near = recording.moments[max(0, at - 1) : at + 1]
            tally.at_syncs += any(moment.call.name in SYNCS for moment in near)
        if at < len(recording.moments):
            moment = recording.moments[at]
            if recording.is_acknowledgement(moment):
                lines += moment.call.texts[0].splitlines()
            elif moment.call.path != str(recording.folder / "log"):
                disk.replay(moment)
    return tally


def _cut(disk: Disk, lines: Sequence[bytes], rng: random.Random, folder: Path, tally: Tally, number: int) -> None:
    cut, known = Cut.drawn(rng), facts(lines)
    tally.cuts += 1
    tally.acknowledged += len(known)
    tally.kinds[f"kept {cut.kept:g}{', torn' if cut.torn else ''}{', in order' if cut.in_order else ''}"] += 1
    with left(disk, cut, rng, folder) as data:
        try:
            tally.unfinished += expect(data, known)
        except Exception as error:  # noqa: BLE001 - whatever it is, the cut failed
            told = "".join(traceback.format_exception(error)[-4:])
            tally.failures.append({"cut": number, "how": repr(cut), "error": f"{type(error).__name__}: {error}"[:500]})
            print(f"cut {number}: {told}", file=sys.stderr, flush=True)


def resume(recording: Recording, at: int, seed: int, folder: Path) -> int:
    """Cut power before a moment and open the whole service on what is left; gives the tune jobs that it finished.

    Raises AssertionError if one of them does not succeed, or if anything is lost.
    """
    disk, lines, rng = Disk(recording.folder / "disk"), list[bytes](), random.Random(f"{seed} resumed {at}")
    for moment in recording.moments[:at]:
        if recording.is_acknowledgement(moment):
            lines += moment.call.texts[0].splitlines()
        elif moment.call.path != str(recording.folder / "log"):
            disk.replay(moment)
    with left(disk, Cut.drawn(rng), rng, folder) as data:
        return expect_resumed(data, facts(lines))


@contextmanager
def left(disk: Disk, cut: Cut, rng: random.Random, folder: Path) -> Iterator[Path]:
    """The folder of the data after a cut, inside the block; shared memory's file holds anything."""
    folder.mkdir(parents=True)
    try:
        disk.after(cut, rng, folder)
        for path in folder.rglob(f"*{_SHM}"):
            path.write_bytes(rng.randbytes(path.stat().st_size) if rng.random() < 0.5 else path.read_bytes())
        yield folder / "data"
    finally:
        shutil.rmtree(folder)


def measure(recording: Recording, count: int, seed: int, scratch: Path, processes: int) -> Iterator[dict[str, object]]:
    """Do so many cuts, in several processes, and tell after each share what came of them so far."""
    started, tally, disk = perf_counter(), Tally(), Disk(recording.folder / "disk")
    for moment in recording.moments:
        if moment.call.path != str(recording.folder / "log"):
            disk.replay(moment)
    recorded = {"changes": disk.writes, "syncs": disk.syncs}
    recorded["acknowledged"] = sum(map(recording.is_acknowledgement, recording.moments))
    cuts = list(enumerate(recording.cuts(random.Random(seed), count)))
    random.Random(seed).shuffle(cuts)
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        shares = [cuts[first : first + _SHARE] for first in range(0, count, _SHARE)]
        for done in as_completed([pool.submit(run, recording, share, seed, scratch) for share in shares]):
            tally.add(done.result())
            yield {
                "seed": seed,
                "cuts": tally.cuts,
                "at_syncs": tally.at_syncs,
                "failures": len(tally.failures),
                "recorded": recorded,
                "acknowledgements_looked_for": tally.acknowledged,
                "tune_jobs_to_resume": tally.unfinished,
                "cuts_by_kind": dict(sorted(tally.kinds.items())),
                "seconds": round(perf_counter() - started, 1),
                "failed": tally.failures[:100],
            }


def main() -> None:
    """Record, cut, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--shapes", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", type=Path, help="a folder that keeps the recording, or has one")
    parser.add_argument("--only", type=int, help="the number of one cut, to be done alone")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:  # noqa: S108 - memory
        folder = (arguments.record or Path(scratch) / "recording").absolute()
        recording = Recording.made(folder, Path(scratch) / "cache", arguments.shapes)
        if arguments.only is not None:
            place = recording.cuts(random.Random(arguments.seed), arguments.cuts)[arguments.only]
            print(run(recording, [(arguments.only, place)], arguments.seed, Path(scratch) / "cuts"))
            return
        known = arguments.cuts, arguments.seed, Path(scratch) / "cuts", arguments.processes
        for report in measure(recording, *known):
            text = json.dumps(report, indent=1) + "\n"
            if arguments.out:
                arguments.out.write_text(text)
    print(text)
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
