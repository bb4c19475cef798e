"""Response models of trials and misses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from app.api.responses import Accuracy, Answer, Conditions, Match, Problem, Timing
from app.services.best import lookup
from app.store.records import MissRecord, TrialRecord

Outcome = Literal["measured", "rejected"]
Round = Literal["search", "final", "report"]


class Compilation(Answer):
    """What compiling a config took, and what its launch takes; null where neither compiler nor driver tells."""

    seconds: Annotated[float | None, Field(description="Of the compiler, when it made the binary.")] = None
    local_bytes: Annotated[int | None, Field(description="Of a thread, spills among them.")] = None
    shared_bytes: Annotated[int | None, Field(description="Of a block.")] = None
    constant_bytes: int | None = None
    max_threads: Annotated[int | None, Field(description="The most that a block of it may have.")] = None
    grid: Annotated[int | None, Field(description="Blocks of the launch.")] = None
    block: Annotated[tuple[int, int] | None, Field(description="Threads of a block, x then y.")] = None

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Compilation | None:
        """Take it as the store has it."""
        return None if value is None else cls.model_validate(value)


class Trial(Answer):
    """One config tried on one problem and device model: measured, or rejected at a stage for a reason."""

    id: int
    job_id: str
    device_model: str
    device_uuid: str
    environment: str
    problem: Problem
    kernel: str
    config: dict[str, int]
    state: Outcome
    stage: str | None
    reason: str | None
    timing: Timing | None
    gflops: float | None
    error: Accuracy | None
    registers: int | None
    compilation: Compilation | None
    created_at: datetime
    round: Round
    conditions: Conditions | None
    retaken: Annotated[int, Field(description="Rounds that were disturbed, and taken again.")]
    samples_ms: Annotated[list[float] | None, Field(description="Every sample in order; null unless asked for.")]

    @classmethod
    def of(cls, value: TrialRecord, *, samples: bool = False) -> Trial:
        """Take the domain's value."""
        timing = lookup.timing_of(value)
        return cls(
            id=value.id or 0,
            job_id=value.job_id,
            device_model=value.device_model,
            device_uuid=value.device_uuid,
            environment=value.environment,
            problem=Problem.of(value.problem),
            kernel=value.kernel,
            config=dict(value.config),
            state=cast("Outcome", value.state),
            stage=value.stage,
            reason=value.reason,
            timing=Timing.of(timing),
            gflops=lookup.gflops(value.problem, timing),
            error=Accuracy.of(lookup.accuracy_of(value)),
            registers=value.registers,
            compilation=Compilation.of(value.compilation),
            created_at=value.created_at,
            round=cast("Round", value.round),
            conditions=Conditions.of(value.conditions),
            retaken=value.retaken,
            samples_ms=[1e3 * seconds for seconds in value.seconds] if samples else None,
        )


class Trials(Answer):
    """A page of trials, oldest first; `next` asks for the page after it."""

    trials: list[Trial]
    next: str | None


class Miss(Answer):
    """A shape that was asked for and not tuned: how often, and how exact the last answer was."""

    device_model: str
    problem: Problem
    count: int
    match: Match
    first_at: datetime
    last_at: datetime

    @classmethod
    def of(cls, value: MissRecord) -> Miss:
        """Take the domain's value."""
        return cls(
            device_model=value.device_model,
            problem=Problem.of(value.problem),
            count=value.count,
            match=cast("Match", value.match),
            first_at=value.first_at,
            last_at=value.last_at,
        )


class Misses(Answer):
    """A page of shapes asked for and not tuned, those asked for most first; `next` asks for the page after it."""

    misses: list[Miss]
    next: str | None
