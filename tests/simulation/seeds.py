"""Simulated runs from seeds: `python -m tests.simulation.seeds products --seeds 10000 --first 0 --out FILE`.

Prints each seed that fails, with what went wrong; `--first SEED --seeds 1` does that run again, step for step.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Final

from tests.simulation import served_products, stored_jobs, turns

RUNS: Final = {"turns": turns.run, "products": served_products.run, "jobs": stored_jobs.run}
_SHARE: Final = 50  # seeds that a process is given at once


@dataclass
class Tally:
    """What came of runs."""

    runs: int = 0
    steps: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)


def runs(what: str, seeds: Iterable[int]) -> Tally:
    """Do runs, and print those that fail."""
    tally, level = Tally(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for seed in seeds:
            _run(what, seed, tally)
    finally:
        logging.disable(level)
    return tally


def _run(what: str, seed: int, tally: Tally) -> None:
    tally.runs += 1
    try:
        simulation, outcomes = RUNS[what](seed)
        tally.steps += simulation.steps
        tally.outcomes += outcomes
    except Exception as error:  # noqa: BLE001 - whatever it is, the run failed
        tally.failures[seed] = f"{type(error).__name__}: {error}"[:500]
        print(f"seed {seed} of {what}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)


def measure(what: str, first: int, count: int, processes: int) -> Iterator[dict[str, object]]:
    """Do the runs of so many seeds in several processes, and tell after each share what came of them so far."""
    started, total = perf_counter(), Tally()
    shares = [range(at, min(at + _SHARE, first + count)) for at in range(first, first + count, _SHARE)]
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        for tally in pool.map(runs, [what] * len(shares), shares):
            total.runs += tally.runs
            total.steps += tally.steps
            total.outcomes += tally.outcomes
            total.failures |= tally.failures
            yield {
                "what": what,
                "first": first,
                "runs": total.runs,
                "failures": len(total.failures),
                "steps": total.steps,
                "outcomes": dict(sorted(total.outcomes.items())),
                "seconds": round(perf_counter() - started, 1),
                "failed": total.failures,
            }


def main() -> None:
    """Do the runs and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for report in measure(arguments.what, arguments.first, arguments.seeds, arguments.processes):
        text = json.dumps(report, indent=1) + "\n"
        if arguments.out:
            arguments.out.write_text(text)
    print(text)
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
