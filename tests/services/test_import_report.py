"""What becomes of each line of an import, beside what is known here: each of the six outcomes, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.interchange.results import BestResult, ConfigResult, TuningResults, size_of
from app.services.interchange.report import OUTCOMES, ImportReport, KnownTime, best_line, line_of
from kernels.problem import Problem
from kernels.space import Config

PROBLEM = Problem(64, 48, 32)
RIGHT, FAILED = ConfigResult((8, 16, 8), 1.0, line=3), ConfigResult((8, 16, 8), failure="compile", line=3)
SPACE = TuningResults("A device", "tiled", ("BM", "BN", "BK"), (RIGHT,), PROBLEM, size_of(PROBLEM), digest="0f")
BEST = BestResult(
    "A device", PROBLEM, "tiled", Config.of({"BM": 8, "BN": 16, "BK": 8}), 1.0, "2026-11-23T00:00:00+00:00"
)
CASES = {
    "new": (RIGHT, None, True, "added", "it was not known"),
    "as here": (RIGHT, KnownTime(1.005), True, "same", "1 ms there, 1.005 ms here"),
    "faster there": (RIGHT, KnownTime(1.1), True, "better", "1 ms there, 1.1 ms here"),
    "slower there": (RIGHT, KnownTime(0.9), True, "worse", "1 ms there, 0.9 ms here"),
    "within its interval": (RIGHT, KnownTime(1.2, (0.9, 1.5)), True, "same", "1 ms there, 1.2 ms here"),
    "failed at both": (FAILED, KnownTime(None), True, "same", "it failed here too"),
    "failed there": (FAILED, KnownTime(1.0), True, "conflict", "it failed there and was measured here"),
    "failed here": (RIGHT, KnownTime(None), True, "conflict", "it was measured there and failed here"),
    "of another text": (
        RIGHT,
        KnownTime(1.0, None, "ab"),
        True,
        "conflict",
        "measured with another text of the kernel",
    ),
    "twice": (RIGHT, None, False, "conflict", "the file has this config twice: the first is kept"),
    "no config": (replace(RIGHT, values=(7, 16, 8)), None, True, "refused", "it is no config of tiled: BM is one of"),
    "no integers": (replace(RIGHT, values=("8", 16, 8)), None, True, "refused", "a parameter's value is no integer"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_config_has_its_outcome_and_the_reason(case: str) -> None:
    one, known, is_first, outcome, detail = CASES[case]
    line = line_of(SPACE, one, known, is_first=is_first)
    assert (line.line, line.outcome) == (3, outcome)
    assert detail in line.detail


def test_every_outcome_is_counted_and_has_a_case() -> None:
    lines = [line_of(SPACE, one, known, is_first=first) for one, known, first, *_ in CASES.values()]
    counts = ImportReport(lines).counts
    assert tuple(counts) == OUTCOMES
    assert sum(counts.values()) == len(CASES)
    assert all(counts.values())


def test_a_config_of_a_kernel_that_is_not_here_is_kept_and_says_so() -> None:
    line = line_of(replace(SPACE, kernel="theirs"), replace(RIGHT, values=(7, 16, 8)), None, is_first=True)
    assert (line.outcome, line.detail) == (
        "added",
        "no kernel here is called theirs: it is kept, and no search starts from it",
    )


def test_a_best_of_another_config_tells_both() -> None:
    ours = KnownTime(2.0, None, None, Config.of({"BM": 1, "BN": 16}), "naive")
    line = best_line(BEST, ours)
    assert (line.outcome, line.detail) == (
        "better",
        "1 ms there, 2 ms here: tiled BM=8,BN=16,BK=8 there, naive BM=1,BN=16 here",
    )
    assert best_line(BEST, None).detail == "tiled BM=8,BN=16,BK=8 takes 1 ms"
    refused = best_line(replace(BEST, config=Config.of({"BM": 7, "BN": 16, "BK": 8})), None)
    assert refused.outcome == "refused"
