"""The frozen records that the store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One config tried on one problem and device by one job; `id` is None until it is saved, and rises with commits.

    `state` is measured or rejected: a measured trial has its timing in milliseconds (its interval is None if one
    sample says nothing of it), a rejected one `stage` and `reason`. `kernel` is "vendor" for the vendor's library, with
    an empty config and the library's name as digest. `round` is search; final for a finalist's samples, which chose
    the winner; or report for fresh samples taken after the choice. `policy` names how launches were timed, `seconds`
    are the samples in order, to the nanosecond; `retaken` rounds were disturbed and taken again. `compilation` is what
    is known of it but the registers, by the members of Compilation. `created_at` is aware, and comes back in UTC.
    Floats are finite.
    """

    id: int | None
    job_id: str
    device_model: str
    device_uuid: str
    environment: str
    problem: Problem
    kernel: str
    kernel_digest: str
    config: Config
    state: str
    stage: str | None
    reason: str | None
    median_ms: float | None
    ci95_lo_ms: float | None
    ci95_hi_ms: float | None
    samples: int | None
    limited: bool
    relative_l2: float | None
    max_scaled: float | None
    registers: int | None
    created_at: datetime
    round: str = "search"
    policy: str | None = None
    dropped: bool = False
    seconds: tuple[float, ...] = field(default=(), repr=False)
    conditions: Mapping[str, Any] | None = None
    retaken: int = 0
    compilation: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PointRecord:
    """A trial without its samples and provenance: what a chart of thousands needs of each."""

    id: int
    problem: Problem
    kernel: str
    config: Config
    round: str
    state: str
    reason: str | None
    median_ms: float | None


@dataclass(frozen=True, slots=True)
class BestRecord:
    """The promoted trial of one device model and problem, and the trials of its report round.

    `default` is the trial of the untuned choice. A trial that is None was not measured, for its `_reason`. Raises
    ValueError if the promoted trial is another model's or another problem's.
    """

    device_model: str
    problem: Problem
    trial: TrialRecord
    naive: TrialRecord | None
    tiled: TrialRecord | None
    vendor: TrialRecord | None
    vendor_reason: str | None
    tuned_at: datetime
    default: TrialRecord | None = None
    naive_reason: str | None = None
    tiled_reason: str | None = None
    default_reason: str | None = None

    def __post_init__(self) -> None:
        if (self.trial.device_model, self.trial.problem) != (self.device_model, self.problem):
            measured = f"{self.trial.problem.key} on {self.trial.device_model}"
            raise ValueError(f"a trial of {measured} is no best of {self.problem.key} on {self.device_model}")


@dataclass(frozen=True, slots=True)
class Promotion:
    """Which trial became the best of a device model and problem, and when."""

    device_model: str
    problem_key: str
    trial_id: int
    tuned_at: datetime

    @classmethod
    def of(cls, best: BestRecord) -> Promotion | None:
        """A stored best's; None of one whose trial is not stored."""
        trial = best.trial.id
        return None if trial is None else cls(best.device_model, best.problem.key, trial, best.tuned_at)


@dataclass(frozen=True, slots=True)
class DeviceProgress:
    """What one device has done of a running job: shapes and trials, and the seconds that these took of the budget."""

    device: str
    shapes: int = 0
    trials: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One piece of durable work: `request`, `result` and `error` are JSON, `fingerprint` is equal for the same work.

    `state` is queued, running, succeeded, failed or cancelled; `done` of at most `total` trials are over, the fastest
    so far took `best_ms` milliseconds. `phase` is that of a running job, `eta_seconds` its estimated remaining time;
    `spent_seconds` are the seconds so far, of every process that ran it; `devices` are told of a job while it runs, and
    not stored. `device_models` is a JSON list of the models of the devices that the request names; None: any.
    """

    id: str
    kind: str
    state: str
    fingerprint: str
    request: dict[str, Any]
    done: int
    total: int
    best_ms: float | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    phase: str | None = None
    eta_seconds: float | None = None
    spent_seconds: float | None = None
    principal: str = "anonymous"
    devices: tuple[DeviceProgress, ...] = ()
    device_models: str | None = None


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """The failure of a config of a kernel's text on a device model and environment, and the scope where it is excluded.

    `kind` is wrong (the config is never served), compile, launch, timeout, died or memory. `scope` is empty for every
    problem, or the family or the key of the problems concerned. `job_id` is None if a product found it.
    """

    device_model: str
    environment: str
    kernel: str
    kernel_digest: str
    config: Config
    scope: str
    kind: str
    stage: str
    reason: str
    job_id: str | None
    at: datetime

    def concerns(self, problem: Problem) -> bool:
        """Whether the config is not to be tried on this problem."""
        return self.scope in {"", problem.family, problem.key}


@dataclass(frozen=True, slots=True)
class MissRecord:
    """A shape that was asked for on a device model and is not tuned: how often, and how exact the last answer was."""

    device_model: str
    problem: Problem
    count: int
    match: str
    first_at: datetime
    last_at: datetime


MissPlace = tuple[int, datetime, str, str]  # count, last_at, device_model and problem_key: a shape's place in a list


@dataclass(frozen=True, slots=True)
class KnownRecord:
    """The newest median in milliseconds of each of a kernel's configs on one problem and device model."""

    device_model: str
    problem: Problem
    median_ms: Mapping[Config, float] = field(repr=False)


@dataclass(frozen=True, slots=True)
class CrossRecord:
    """Milliseconds on this problem of a config that is best for another problem of the family."""

    device_model: str
    problem: Problem
    kernel: str
    config: Config
    round: str
    median_ms: float
    samples: int
    dropped: bool


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """A principal's Idempotency-Key, the fingerprint of its request, and the first answer.

    `status` is None until there is an answer; `body` is its text, None if that is the result of the job, as a matrix
    is. `job_id` names the job that the request made or joined, as soon as that is stored. `service_seconds` is when the
    request came, by the clock of Idempotency.
    """

    principal: str
    key: str
    fingerprint: str
    created_at: datetime
    job_id: str | None = None
    status: int | None = None
    headers: dict[str, str] | None = None
    body: str | None = None
    service_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """A key of a principal: what it may do, and the keyed hash of its token; None for a client certificate's.

    `quota` has the members of a UsageQuota that are set. It ends at `expires_at`, or at `revoked_at` once there is one.
    """

    id: str
    principal: str
    scopes: tuple[str, ...]
    quota: dict[str, Any]
    digest: str | None = field(repr=False)
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class CordonRecord:
    """A device that serves nothing: why, by whom (`operator` or `health`), and since when."""

    device: str
    reason: str
    imposed_by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """The counted products of a principal's file, as JSON; the job that tuned them last, and where."""

    id: str
    principal: str
    name: str
    source: str
    content: dict[str, Any] = field(repr=False)
    created_at: datetime
    job_id: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class BestRevision:
    """What became the best of a problem (`event` promoted), or stopped to be it (deleted); `number` rises with time.

    `default_ms` and `vendor_ms` were measured beside it.
    """

    number: int
    event: str
    at: datetime
    device_model: str
    problem: Problem
    job_id: str | None
    kernel: str
    kernel_digest: str
    config: Config
    environment: str
    median_ms: float | None
    ci95_lo_ms: float | None
    ci95_hi_ms: float | None
    samples: int | None
    policy: str | None
    default_ms: float | None
    vendor_ms: float | None


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """A file of results that a principal imported: `nbytes` are what is stored of it, `counts` its lines by outcome."""

    id: str
    principal: str
    format: str
    sha256: str
    nbytes: int
    counts: Mapping[str, int]
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ImportedSpaceRecord:
    """The results of one space of an import, packed, and the fastest config where that is one of a kernel's."""

    import_id: str
    kind: str
    device: str
    problem: Problem
    kernel: str
    best_config: Config | None
    best_ms: float | None
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """An opaque result of another tuner, of a principal; `number` is None until it is saved."""

    principal: str
    namespace: str
    key: str
    body: bytes = field(repr=False)
    media: str
    etag: str
    created_at: datetime
    expires_at: datetime | None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """What a job found of a problem's kernels on a device; `number` is None until it is saved."""

    id: str
    device: str
    device_model: str
    environment: str
    problem: Problem
    content: dict[str, Any] = field(repr=False)
    created_at: datetime
    number: int | None = None
