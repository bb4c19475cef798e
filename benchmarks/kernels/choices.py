"""Plan which configs to time next for the corrections of estimates: their own choices for drawn problems.

    python -m benchmarks.kernels.choices PLAN [--seed N] [--each 40] [--best 8] [--rows NAME ...]

An estimate that is too low is chosen, whatever the others are. Once such choices are timed and fitted, it no longer is
(S. Ross, G. Gordon, D. Bagnell, "A reduction of imitation learning and structured prediction to no-regret online
learning", AISTATS 2011, which gathers what a policy meets by itself). So of each problem PLAN has what is taken untuned
on an H200, and the best by corrected estimates of all kernels.
benchmarks.kernels.configs times PLAN on the GPU, and benchmarks.kernels.residuals fits to what comes of it. No GPU is
needed here.

Problems are those of benchmarks.kernels.drawn, by a seed of their own, but for the few that are largest.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from heapq import nsmallest
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from app.services.best.kernel_order import covering, untuned
from benchmarks.kernels.drawn.__main__ import TEACHING
from benchmarks.kernels.drawn.shapes import BY_NAME, ROWS, drawn, elements
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.residuals import corrected_seconds, least, residuals
from kernels.space import Config
from tests.support.kernels.devices import H200

MOST_ELEMENTS: Final = 2**27  # of A, B and C together: the host makes them
OF_A_KERNEL: Final = 5  # of the best, so that others come, too
Choice = tuple[str, dict[str, int]]


def taken(problem: Problem) -> Choice:
    """The untuned kernel and its default."""
    kernel = next(untuned(problem, H200))
    return kernel.name, dict(kernel.default(problem, H200))


def best(problem: Problem, count: int) -> list[Choice]:
    """So many configs of the least corrected estimates, of kernels that have them."""
    found = [
        (corrected_seconds(kernel, config, problem, H200), kernel.name, config)
        for kernel in covering(problem, H200)
        if kernel.name not in TEACHING and residuals(kernel, problem, H200) is not None
        for config in candidates(kernel, problem)[:OF_A_KERNEL]
    ]
    return [(name, dict(config)) for _, name, config in nsmallest(count, found, key=lambda one: one[0])]


def candidates(kernel: Kernel, problem: Problem) -> Sequence[Config]:
    """A kernel's legal configs of the least estimates, as corrected; its default alone where it has no model."""
    if kernel.seeds is not None:
        return kernel.seeds(problem, H200)
    if kernel.seconds is not None:
        return least(kernel, kernel.space.legal(problem, H200), problem, H200)
    default = kernel.default(problem, H200)
    return () if kernel.space.refusal(default, problem, H200) else (default,)


def problems(seed: int, names: Sequence[str], each: int) -> list[Problem]:
    """So many of every row, one of each in turn."""
    found = (drawn(seed, BY_NAME[name], number).problem for number in range(each) for name in names)
    return [problem for problem in dict.fromkeys(found) if elements(problem) <= MOST_ELEMENTS]


def planned(problem: Problem, count: int) -> tuple[str, list[Choice]]:
    """A problem's key and choices, what is taken untuned first, none twice."""
    return problem.key, unlike([taken(problem), *best(problem, count)])


def unlike(choices: Sequence[Choice]) -> list[Choice]:
    """Each once, in order."""
    found: list[Choice] = []
    for one in choices:
        if one not in found:
            found.append(one)
    return found


def main() -> None:
    """Draw, choose and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rows", nargs="+", choices=list(BY_NAME), default=[row.name for row in ROWS], metavar="NAME")
    parser.add_argument("--each", type=int, default=40, help="problems of every row")
    parser.add_argument("--best", type=int, default=8, help="configs of a problem")
    asked: Any = parser.parse_args()
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        every = pool.map(partial(planned, count=asked.best), problems(seed, asked.rows, asked.each))
        plan = [one for one in every if len(one[1]) > 1]
    asked.plan.write_text(json.dumps(plan), encoding="utf-8")
    print(f"seed {seed}: {len(plan)} problems, {sum(len(choices) for _, choices in plan)} configs")


if __name__ == "__main__":
    main()
