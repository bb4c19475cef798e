"""What the store keeps, as frozen records: they travel between the rooms, rows never do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One config tried on one problem and device by one job; `id` is None until it is saved, and rises with commits.

    `state` is measured or rejected: a measured trial has its timing in milliseconds, a rejected one `stage` and
    `reason`. `kernel` is "vendor" for the vendor's library, with an empty config and the library's name as digest.
    `created_at` is aware, and comes back in UTC. Floats are finite.
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


@dataclass(frozen=True, slots=True)
class BestRecord:
    """The promoted trial of one device model and problem, beside the baselines measured in the same job.

    Raises ValueError where the promoted trial is another model's or another problem's.
    """

    device_model: str
    problem: Problem
    trial: TrialRecord
    naive: TrialRecord | None
    tiled: TrialRecord | None
    vendor: TrialRecord | None
    vendor_reason: str | None
    tuned_at: datetime

    def __post_init__(self) -> None:
        if (self.trial.device_model, self.trial.problem) != (self.device_model, self.problem):
            measured = f"{self.trial.problem.key} on {self.trial.device_model}"
            raise ValueError(f"a trial of {measured} is no best of {self.problem.key} on {self.device_model}")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One piece of durable work: `request`, `result` and `error` are JSON, `fingerprint` is equal for the same work.

    `state` is queued, running, succeeded, failed or cancelled; `done` of at most `total` trials are over, the fastest
    so far took `best_ms` milliseconds.
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
