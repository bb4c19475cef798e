from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.services.tuning.progress import JobProgress
from app.services.workloads.report import UNTUNED, WorkloadReport, report_of
from app.store.records import BestRecord, TrialRecord
from app.tuning.budget import Budget
from app.workloads.counted import CountedProblem
from kernels.problem import Problem
from tests.support.store.stored_records import TRIAL, best

_PROBLEMS = tuple(Problem(size, size, size) for size in (64, 128, 256))


class Stored:
    def __init__(self, *records: BestRecord) -> None:
        self._records = {record.problem: record for record in records}

    def record(self, model: str, problem: Problem) -> BestRecord | None:
        assert model == TRIAL.device_model
        return self._records.get(problem)


def timed(problem: Problem, kernel: str, low: float, median: float, high: float | None) -> TrialRecord:
    bounds: dict[str, Any] = {"ci95_lo_ms": None if high is None else low, "ci95_hi_ms": high}
    return replace(TRIAL, problem=problem, kernel=kernel, median_ms=median, **bounds)


def reported(*records: BestRecord) -> WorkloadReport:
    counted = [CountedProblem(problem, count) for problem, count in zip(_PROBLEMS, (1000, 10, 1), strict=True)]
    return report_of(counted, [6.0, 3.0, 1.0], "cuda:0", TRIAL.device_model, Stored(*records))


def test_what_is_faster_beyond_both_intervals_is_used_and_else_what_was_before() -> None:
    won = best(timed(_PROBLEMS[0], "tiled", 0.5, 0.6, 0.7), vendor=timed(_PROBLEMS[0], "vendor", 0.9, 1.0, 1.1))
    close = best(timed(_PROBLEMS[1], "tiled", 1.5, 1.8, 2.1), vendor=timed(_PROBLEMS[1], "vendor", 1.9, 2.0, 2.2))
    found = reported(won, close)
    assert [one.after and one.after.name for one in found.shapes] == ["tiled", "vendor", None]
    assert found.shapes[2].reason == UNTUNED
    assert found.covered == pytest.approx(0.9)
    assert found.before is not None
    assert found.after is not None
    assert found.before.ms == pytest.approx(1020)
    assert found.before.ci95_ms == pytest.approx((919, 1122))
    assert found.after.ms == pytest.approx(620)
    assert found.after.ci95_ms == pytest.approx((519, 722))
    assert found.sentence.startswith("your program's products: 1.02e+03 ms -> 620 ms on cuda:0 (1 of 2 shapes faster;")


def test_without_a_vendor_the_untuned_default_was_before_and_no_interval_is_none() -> None:
    record = best(timed(_PROBLEMS[0], "tiled", 0.5, 0.6, None), default=timed(_PROBLEMS[0], "naive", 0.9, 1.0, 1.1))
    found = reported(record)
    assert (found.shapes[0].before and found.shapes[0].before.name) == "default"
    assert (found.before and found.before.ci95_ms) == pytest.approx((900, 1100))
    assert found.after is not None
    assert found.after.ms == pytest.approx(600)
    assert found.after.ci95_ms is None


def test_without_anything_measured_the_report_says_so() -> None:
    found = reported()
    assert (found.before, found.after, found.covered) == (None, None, 0.0)
    assert "none of 3 shapes" in found.sentence


def test_seconds_are_shared_by_weight_beyond_what_one_trial_takes() -> None:
    now = 0.0
    progress = JobProgress(
        Budget(seconds=10.0), [9, 9, 9], lambda: False, lambda: now, needs=[1.0, 2.0, 3.0], weights=[6.0, 3.0, 1.0]
    )
    limits = []
    for number in range(3):
        shape = progress.begin(number, "cuda:0")
        limit = shape.kernel_budget(1).seconds
        assert limit is not None
        limits.append(limit)
        now += limit
        shape.finish()
    assert limits == pytest.approx([1 + 24 * 0.6, 2 + 24 * 0.3, 3 + 24 * 0.1])
