"""Response models of workloads, with an example of each."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field

from app.api.responses import Answer, Problem
from app.services.workloads import report as domain
from app.services.workloads.service import StoredWorkload
from app.workloads.counted import CountedProblem

Interval = tuple[float, float] | None


class Incumbent(Answer):
    """What ran a product in the program, by its file: null is what the file does not tell."""

    name: str | None
    total_ms: Annotated[float | None, Field(description="Of all calls.")]
    mean_ms: Annotated[float | None, Field(description="Of one call.")]
    ci95_ms: Annotated[Interval, Field(description="The 95 % interval of that mean.")]

    @classmethod
    def of(cls, value: CountedProblem) -> Incumbent:
        """Take the domain's value."""
        mean = None if value.total_ms is None else value.total_ms / value.count
        return cls(name=value.incumbent, total_ms=value.total_ms, mean_ms=mean, ci95_ms=value.ci95_ms)


class MeasuredCall(Answer):
    """One call as it was measured on the device: the median of its time."""

    name: Annotated[str, Field(description="A kernel, or `vendor`, or `default`: the untuned choice.")]
    config: dict[str, int]
    median_ms: float
    ci95_ms: Interval

    @classmethod
    def of(cls, value: domain.CallTime | None) -> MeasuredCall | None:
        """Take the domain's value."""
        if value is None:
            return None
        return cls(name=value.name, config=dict(value.config), median_ms=value.median_ms, ci95_ms=value.ci95_ms)


class ShapeReport(Answer):
    """One product of the program: how often it runs, what ran it, and what it takes before and after."""

    problem: Problem
    count: int
    stake_ms: Annotated[
        float, Field(description="Of all calls: by the file, else as measured here, else by the cost model.")
    ]
    incumbent: Incumbent
    before: Annotated[
        MeasuredCall | None, Field(description="The vendor's library, or the untuned default where there is none.")
    ]
    winner: Annotated[MeasuredCall | None, Field(description="The fastest of ours, measured in turn with it.")]
    after: Annotated[
        MeasuredCall | None,
        Field(description="What to use: the winner where it is faster beyond both intervals, else what was before."),
    ]
    reason: Annotated[str | None, Field(description="Why one of them is null.")]

    @classmethod
    def of(cls, value: domain.ProductReport) -> ShapeReport:
        """Take the domain's value."""
        return cls(
            problem=Problem.of(value.counted.problem),
            count=value.counted.count,
            stake_ms=value.stake_ms,
            incumbent=Incumbent.of(value.counted),
            before=MeasuredCall.of(value.before),
            winner=MeasuredCall.of(value.winner),
            after=MeasuredCall.of(value.after),
            reason=value.reason,
        )


class TotalTime(Answer):
    """All calls of the products that were measured; the interval is between the sums of all bounds."""

    ms: float
    ci95_ms: Interval

    @classmethod
    def of(cls, value: domain.WorkloadTime | None) -> TotalTime | None:
        """Take the domain's value."""
        return None if value is None else cls(ms=value.ms, ci95_ms=value.ci95_ms)


class Skipped(Answer):
    """Products of the file that are no problem here."""

    what: str
    reason: str
    count: int


class WorkloadSummary(Answer):
    """A workload without its products."""

    id: str
    name: str
    source: Annotated[str, Field(description="As what the file was read.", examples=["torch.profiler"])]
    shapes: Annotated[int, Field(description="Different products.")]
    calls: Annotated[int, Field(description="Products in all.")]
    created_at: datetime
    job: Annotated[str | None, Field(description="The job that tunes it, or did last: `/jobs/{id}/events` follows it.")]

    @classmethod
    def members(cls, value: StoredWorkload) -> dict[str, Any]:
        """Its members, of the domain's value."""
        record = value.record
        return {
            "id": record.id,
            "name": record.name,
            "source": record.source,
            "shapes": len(value.problems),
            "calls": sum(one.count for one in value.problems),
            "created_at": record.created_at,
            "job": record.job_id,
        }


class WorkloadAnswer(WorkloadSummary):
    """A workload: its products, those with most time at stake first, with what is known of each now, and in all."""

    device: str
    summary: Annotated[str, Field(description="The report in one line.")]
    before: TotalTime | None
    after: TotalTime | None
    covered: Annotated[float, Field(description="The part of the time at stake that both totals are of, from 0 to 1.")]
    products: list[ShapeReport]
    skipped: list[Skipped]

    @classmethod
    def of(cls, value: StoredWorkload, report: domain.WorkloadReport) -> WorkloadAnswer:
        """Take the domain's values."""
        return cls(
            **cls.members(value),
            device=report.device,
            summary=report.sentence,
            before=TotalTime.of(report.before),
            after=TotalTime.of(report.after),
            covered=report.covered,
            products=[ShapeReport.of(each) for each in report.shapes],
            skipped=[Skipped(what=one.what, reason=one.reason, count=one.count) for one in value.skipped],
        )


class WorkloadList(Answer):
    """A page of workloads, newest first; `next` asks for the page after it."""

    workloads: list[WorkloadSummary]
    next: str | None


_PROBLEM: Final = {
    "m": 256,
    "n": 1024,
    "k": 512,
    "batch": 1,
    "dtype": "bfloat16",
    "precision": "strict",
    "trans_a": False,
    "trans_b": True,
}
_CALL: Final = {"name": "vendor", "config": {}, "median_ms": 0.0038, "ci95_ms": [0.0037, 0.0039]}
_WON: Final = {"name": "hopper", "config": {"BM": 64, "BN": 64}, "median_ms": 0.0031, "ci95_ms": [0.003, 0.0032]}
_SHAPE: Final = {
    "problem": _PROBLEM,
    "count": 320,
    "stake_ms": 1.22,
    "incumbent": {
        "name": "nvjet_sm90_tst_64x32_64x16_1x2_h_bz_NNT",
        "total_ms": 1.22,
        "mean_ms": 0.0038,
        "ci95_ms": [0.0037, 0.0039],
    },
    "before": _CALL,
    "winner": _WON,
    "after": _WON,
    "reason": None,
}
_SUMMARY: Final = {
    "id": "4a1fd5a00c0b4c7e8a3f1d2e9b6c5a70",
    "name": "decode.json.gz",
    "source": "torch.profiler",
    "shapes": 1,
    "calls": 320,
    "created_at": "2026-01-31T12:00:00Z",
    "job": None,
}
EXAMPLES: Final[dict[str, Any]] = {
    "WorkloadSummary": _SUMMARY,
    "WorkloadList": {"workloads": [_SUMMARY], "next": None},
    "ShapeReport": _SHAPE,
    "MeasuredCall": _CALL,
    "WorkloadAnswer": _SUMMARY
    | {
        "device": "cuda:0",
        "summary": "your program's products: 1.22 ms -> 0.992 ms on cuda:0 "
        "(1 of 1 shapes faster; 1 in all, measured 100 % of the time)",
        "before": {"ms": 1.216, "ci95_ms": [1.184, 1.248]},
        "after": {"ms": 0.992, "ci95_ms": [0.96, 1.024]},
        "covered": 1.0,
        "products": [_SHAPE],
        "skipped": [{"what": "aten::_scaled_mm", "reason": "products with scales are no problem here", "count": 2}],
    },
}
