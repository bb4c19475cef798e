"""Response models, and their conversion from domain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.services.best import lookup
from app.services.best.answer import AnswerSource
from app.services.jobs.service import progress
from app.store.records import JobRecord
from app.tuning import outcome
from kernels import problem
from kernels.launch import Launch as KernelLaunch

Config = Annotated[dict[str, int], Field(description="Parameters by name.", examples=[{"BM": 16, "BN": 16, "BK": 16}])]
Instructions = Annotated[
    str,
    Field(
        description="The path by which products reach an arithmetic unit: fma, wmma, mma.sync, wgmma or dmma.",
        examples=["wgmma"],
    ),
]
Precision = Annotated[str, Field(description="The precision it is computed in.", examples=["strict"])]
Declined = Annotated[
    str | None, Field(description="Why it is computed strictly though it was to be emulated; null where it is not.")
]
Match = Literal["exact", "stale", "nearest", "default"]
Kind = Literal["tune", "matmul", "profile"]
State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]


class Answer(BaseModel):
    """One JSON object of the service. Its schema is built at its first use."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def reply(answer: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer as a response."""
    return Response(answer.model_dump_json(), status, headers, "application/json")


class ProblemDetails(BaseModel):
    """An error, in RFC 9457's members with two more; figures such as a limit and a size stand beside them."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(description="The path at which the service says what the code means.")]
    title: Annotated[str, Field(description="The status in words.")]
    status: Annotated[int, Field(ge=400, le=599)]
    detail: Annotated[str, Field(description="What is wrong, and more where there is more to say.")]
    code: Annotated[str, Field(description="Stable: what programs decide by.", examples=["too_large"])]
    error: Annotated[str, Field(description="One sentence on what is wrong.")]


class Problem(Answer):
    """A problem, in BLAS's letters."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    precision: str
    trans_a: bool
    trans_b: bool

    @classmethod
    def of(cls, value: problem.Problem) -> Problem:
        """Take the domain's value."""
        return cls(**asdict(value))


def told(result: Mapping[str, Any]) -> dict[str, Any]:
    """A job's result as callers see it: the store has a problem's key where they have the problem."""
    found = dict(result)
    if isinstance(found.get("problem"), str):
        found["problem"] = asdict(problem.Problem.of_key(found["problem"]))
    if "best" in found:
        found["best"] = [told(each) for each in found["best"]]
    return found


class Timing(Answer):
    """How long one launch takes: the median of `samples`, and its 95 % interval; null where one says nothing of it."""

    median_ms: float
    ci95_ms: tuple[float, float] | None
    samples: int
    limited: Annotated[bool, Field(description="A time limit cut it short.")]
    dropped: Annotated[bool, Field(description="It was clearly slower than the best, and no more samples were taken.")]
    policy: Annotated[str, Field(description="How launches were timed; figures of two policies are not compared.")]

    @classmethod
    def of(cls, value: outcome.Timing | None) -> Timing | None:
        """Take the domain's value."""
        return None if value is None else cls(**asdict(value))


class Accuracy(Answer):
    """Error against the float64 product: relative L2, and the largest |error|_ij / (|a_i| |b_j|)."""

    relative_l2: float
    max_scaled: float

    @classmethod
    def of(cls, value: outcome.Accuracy | None) -> Accuracy | None:
        """Take the domain's value."""
        return None if value is None else cls(**asdict(value))


class Conditions(Answer):
    """What the device was doing while samples were taken, by its sensors; null where it has none."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    throttled: Annotated[tuple[str, ...], Field(description="Reasons for lower clocks.")] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Conditions | None:
        """Take them as the store has them."""
        return None if value is None else cls.model_validate(value)


class Launch(Answer):
    """Blocks, threads of a block (x, then y), and bytes of shared memory a block."""

    grid: int
    block: tuple[int, int]
    shared_bytes: int

    @classmethod
    def of(cls, value: KernelLaunch) -> Launch:
        """Take the domain's value."""
        return cls(grid=value.grid, block=value.block, shared_bytes=value.shared_bytes)


class Baseline(Answer):
    """What was measured in turn with the best. Where it was not, everything is null and `reason` says why."""

    name: str
    timing: Timing | None
    gflops: float | None
    config: dict[str, int] | None
    error: Accuracy | None
    reason: str | None

    @classmethod
    def of(cls, value: lookup.Baseline) -> Baseline:
        """Take the domain's value."""
        return cls(
            name=value.name,
            timing=Timing.of(value.timing),
            gflops=value.gflops,
            config=None if value.config is None else dict(value.config),
            error=Accuracy.of(value.accuracy),
            reason=value.reason,
        )


class ImportSource(Answer):
    """An import that an answer comes from: nobody measured it here."""

    import_id: str
    format: str
    device: Annotated[str, Field(description="The device that the file names.")]
    imported_at: datetime

    @classmethod
    def of(cls, value: AnswerSource | None) -> ImportSource | None:
        """Take the domain's value."""
        return None if value is None else cls(**asdict(value))


class Best(Answer):
    """A kernel and config for a problem, and how exact that answer is.

    For nearest, timing, error, conditions and baselines are the matched problem's; for default they are null.
    """

    device: str
    problem: Problem
    kernel: str
    config: Config
    instructions: Instructions
    precision: Precision
    declined: Declined
    launch: Launch
    timing: Timing | None
    gflops: float | None
    error: Accuracy | None
    conditions: Conditions | None
    baselines: dict[str, Baseline] | None
    vendor_is_faster: Annotated[
        bool | None,
        Field(description="The vendor's library took less time beside it, which is never best; null: not measured."),
    ]
    match: Match
    provisional: Annotated[bool, Field(description="A tune of this problem is under way and may find a better one.")]
    matched_problem: Problem | None
    expected_loss: Annotated[
        float | None,
        Field(description="For nearest and default: the time expected over what a tune would reach."),
    ]
    loss_bound: Annotated[
        float | None, Field(description="For nearest and default: what that ratio does not exceed 95 times in 100.")
    ]
    environment: str | None
    tuned_at: datetime | None
    source: Annotated[ImportSource | None, Field(description="Where it comes from, if it was imported; else null.")]

    @classmethod
    def of(cls, value: lookup.BestAnswer) -> Best:
        """Take the domain's value."""
        baselines = value.baselines
        return cls(
            device=value.device.id,
            problem=Problem.of(value.problem),
            kernel=value.kernel,
            config=dict(value.config),
            instructions=value.instructions,
            precision=value.precision,
            declined=value.declined,
            launch=Launch.of(value.launch),
            timing=Timing.of(value.timing),
            gflops=value.gflops,
            error=Accuracy.of(value.accuracy),
            conditions=Conditions.of(value.conditions),
            baselines=None if baselines is None else {name: Baseline.of(each) for name, each in baselines.items()},
            vendor_is_faster=value.vendor_is_faster,
            match=cast("Match", value.match),
            provisional=value.provisional,
            matched_problem=None if value.matched_problem is None else Problem.of(value.matched_problem),
            expected_loss=value.expected_loss,
            loss_bound=value.loss_bound,
            environment=value.environment,
            tuned_at=value.tuned_at,
            source=ImportSource.of(value.source),
        )


class DeviceProgress(Answer):
    """What one device has done of a running job."""

    device: str
    shapes: Annotated[int, Field(description="Shapes that it has finished.")]
    trials: Annotated[int, Field(description="Trials since the service took up the job.")]
    seconds: Annotated[float, Field(description="Seconds of the budget that it has spent.")]


class Progress(Answer):
    """Trials of the search done, and of how many at most."""

    done: int
    total: int
    search_best_ms: Annotated[
        float | None,
        Field(
            description="The fastest median of the search so far, a choice's luck included: no figure of the result."
        ),
    ]
    phase: Annotated[
        Literal["preparing", "search", "finals"] | None,
        Field(description="What a running tune does: operands and their reference, trials, or the fastest once more."),
    ]
    eta_seconds: Annotated[
        float | None,
        Field(description="Seconds left, by the budget's limits and the pace so far; null: nobody can say."),
    ]
    elapsed_seconds: Annotated[
        float | None, Field(description="Seconds spent on the job so far; null before it has begun.")
    ]
    budget_seconds: Annotated[
        float | None,
        Field(description="Seconds that a tune may take in all, preparation and finals too; null: no limit."),
    ]
    devices: Annotated[
        list[DeviceProgress],
        Field(
            description="The devices that tune a running job's shapes; empty before it has begun, and after its end."
        ),
    ]


class Job(Answer):
    """One piece of work that outlives its request. `result` and `error` are null until it ends."""

    id: str
    kind: Kind
    state: State
    progress: Progress
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, value: JobRecord) -> Job:
        """Take the domain's value."""
        return cls(
            id=value.id,
            kind=cast("Kind", value.kind),
            state=cast("State", value.state),
            progress=Progress.model_validate(progress(value)),
            result=None if value.result is None else told(value.result),
            error=value.error,
            created_at=value.created_at,
            started_at=value.started_at,
            finished_at=value.finished_at,
        )


class Jobs(Answer):
    """A page of jobs, newest first; `next` asks for the page after it."""

    jobs: list[Job]
    next: str | None


class Bests(Answer):
    """A page of stored bests, newest first; `next` asks for the page after it."""

    bests: list[Best]
    next: str | None
