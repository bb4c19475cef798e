"""How many evaluations each strategy needs until 95 % and 99 % of the optimum, on recordings of whole spaces.

    python -m benchmarks.tuner.search RECORDING... [--json FILE] [--batch 8] [--budget 400] [--seeds 11] [--workers 1]

RECORDING is a cache of Kernel Tuner's (.json, .json.gz) or a replay of ours. The optimum is the lowest mean of a
config's samples. An evaluation tells one sample's median as it was recorded; a config that failed counts as one too.
"auto with transfer" knows the other recordings of the same kernel: other devices, other shapes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from math import hypot, inf, log2
from pathlib import Path
from statistics import median

from app.tuning.outcome import Rejected
from app.tuning.replay import Recording
from app.tuning.search.strategy import PriorTimes, SearchInputs, strategy
from benchmarks.tuner.kernel_tuner_cache import recordings
from kernels.features import features
from kernels.problem import Problem

GOALS = (0.95, 0.99)
WITHIN = 200
CONTESTANTS = ("auto", "auto with transfer", "genetic", "random")


@dataclass(frozen=True)
class Run:
    """One search of one recording: evaluations until each goal (None: not within the budget), and the best reached."""

    recording: str
    contestant: str
    seed: int
    reached: tuple[int | None, ...]
    best: float


@dataclass(frozen=True)
class Job:
    """What a worker is given; it reads the recordings itself, once."""

    paths: tuple[Path, ...]
    place: int
    contestant: str
    seed: int
    batch: int
    budget: int


@cache
def read(paths: tuple[Path, ...]) -> list[Recording]:
    """Every recording of some files."""
    return [recording for path in paths for recording in recordings(path)]


def title(recording: Recording) -> str:
    """A recording in a table's first column."""
    problem = recording.problem
    return f"{recording.kernel} {recording.device.name} {problem.m}x{problem.n}x{problem.k}"


def searched(job: Job) -> Run:
    """One search to its end."""
    every = read(job.paths)
    recording = every[job.place]
    others = [one for one in every if one is not recording and one.kernel == recording.kernel]
    known = [_known(one, recording) for one in others] if job.contestant.endswith("transfer") else []
    shares = list(_shares(recording, job, known))
    reached = tuple(next((place for place, share in enumerate(shares, 1) if share >= goal), None) for goal in GOALS)
    return Run(title(recording), job.contestant, job.seed, reached, max(shares))


def _known(one: Recording, recording: Recording) -> PriorTimes:
    seconds = {config: taken for config in one.outcomes if (taken := one.seconds(config)) is not None}
    return PriorTimes(seconds, _distance(one.problem, recording.problem))


def _distance(one: Problem, other: Problem) -> float:
    return hypot(*(log2(getattr(one, name) / getattr(other, name)) for name in ("m", "n", "k", "batch")))


def _shares(recording: Recording, job: Job, known: Sequence[PriorTimes]) -> Iterator[float]:
    """What share of the optimum's speed each evaluation reached, until the last goal or the budget is reached."""
    kernel = recording.space()
    configs = list(recording.outcomes)
    problem, device, optimum = recording.problem, recording.device, recording.optimum
    first = kernel.default(problem, device)
    one = strategy(
        job.contestant.split()[0],
        SearchInputs(configs, first, lambda config: features(kernel, config, problem, device), known),
        job.seed,
    )
    taken, best = 0, 0.0
    while taken < job.budget and best < GOALS[-1]:
        asked = one.ask(min(job.batch, job.budget - taken))
        if not asked:
            return
        for config in asked:
            found = recording.outcomes[config]
            one.tell(config, None if isinstance(found, Rejected) else median(found))
            seconds = recording.seconds(config)
            share = 0.0 if seconds is None else optimum / seconds
            taken, best = taken + 1, max(best, share)
            yield share


def summary(runs: Sequence[Run]) -> list[dict[str, object]]:
    """A row for each recording and contestant: medians of the evaluations, and how many seeds were within WITHIN."""
    rows: list[dict[str, object]] = []
    for key in dict.fromkeys((run.recording, run.contestant) for run in runs):
        own = [run for run in runs if (run.recording, run.contestant) == key]
        row: dict[str, object] = {"recording": key[0], "contestant": key[1], "seeds": len(own)}
        for place, goal in enumerate(GOALS):
            taken = sorted(inf if (one := run.reached[place]) is None else one for run in own)
            row[f"median_{goal}"] = None if (middle := median(taken)) == inf else middle
            row[f"most_{goal}"] = None if taken[-1] == inf else taken[-1]
            row[f"within_{goal}"] = sum(one <= WITHIN for one in taken)
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """The summary as Markdown; a dash where the budget did not reach."""
    goals = " | ".join(f"{goal:.0%}: median | most | within {WITHIN}" for goal in GOALS)
    lines = [f"| recording | strategy | {goals} |", "|---|---|" + "---|" * (3 * len(GOALS))]
    for row in rows:
        cells = [row["recording"], row["contestant"]]
        for goal in GOALS:
            cells += [row[f"median_{goal}"], row[f"most_{goal}"], f"{row[f'within_{goal}']} of {row['seeds']}"]
        lines.append("| " + " | ".join("-" if cell is None else f"{cell}" for cell in cells) + " |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--strategies", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    for name, value in (("batch", 8), ("budget", 400), ("seeds", 11), ("workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> int:
    """Search every recording with every strategy and seed; 1 where there is no recording."""
    given = arguments()
    for path in given.paths:
        if not path.exists():
            print(f"{path} is absent", file=sys.stderr)
    paths = tuple(path for path in given.paths if path.exists())
    every = read(paths)
    jobs = [
        Job(paths, place, contestant, seed, given.batch, given.budget)
        for place, recording in enumerate(every)
        for contestant in given.strategies
        if not contestant.endswith("transfer") or sum(one.kernel == recording.kernel for one in every) > 1
        for seed in range(given.seeds)
    ]
    if given.workers > 1:
        with ProcessPoolExecutor(given.workers) as pool:
            runs = list(pool.map(searched, jobs))
    else:
        runs = [searched(job) for job in jobs]
    rows = summary(runs)
    print(table(rows))
    if given.json is not None:
        content = {"batch": given.batch, "budget": given.budget, "summary": rows, "runs": [asdict(run) for run in runs]}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main())
