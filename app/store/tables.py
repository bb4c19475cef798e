"""The tables. Kernels' parameters and requests are JSON, whatever is searched or joined has its own column."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import NUMBER
from app.store.base import Base as Base  # noqa: PLC0414 - with all tables in its metadata, for who imports it here
from app.store.column_types import Prose


class DeviceRow(Base):
    """A device this database's services have opened; `host_id` is its id (cuda:0) when that was last."""

    __tablename__ = "devices"

    model: Mapped[str] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(primary_key=True)
    host_id: Mapped[str]
    platform: Mapped[str]
    name: Mapped[str]
    architecture: Mapped[str]
    driver: Mapped[str]
    runtime: Mapped[str]
    compiler: Mapped[str]
    memory_bytes: Mapped[int]
    limits: Mapped[dict[str, Any]]
    mig: Mapped[str]
    exclusive: Mapped[bool]


class JobRow(Base):
    """A job; `number` is the order in which they were taken.

    Where services share the database, `claimed_by` runs it until `lease_until`, under a `fence` that rises with each
    claim; a service of its `device_models` may claim it, where it knows the `version` of the request.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("id"),
        Index(None, "fingerprint", "number"),
        Index(None, "state", "number"),
        Index(None, "kind", "number"),
        {"sqlite_autoincrement": True},
    )

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    id: Mapped[str]
    kind: Mapped[str]
    state: Mapped[str]
    fingerprint: Mapped[str]
    request: Mapped[dict[str, Any]]
    done: Mapped[int]
    total: Mapped[int]
    best_ms: Mapped[float | None]
    result: Mapped[dict[str, Any] | None]
    error: Mapped[dict[str, Any] | None]
    cancel_requested: Mapped[bool]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    phase: Mapped[str | None]
    eta_seconds: Mapped[float | None]
    spent_seconds: Mapped[float | None]
    principal: Mapped[str]
    device_models: Mapped[str | None]
    version: Mapped[int | None]
    claimed_by: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    fence: Mapped[int | None]


class TrialRow(Base):
    """A trial; ids rise in the order of commits, because one thread writes, and are never given twice."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint(
            "job_id", "device_model", "problem_key", "kernel", "config_key", "round", name="uq_trials_attempt"
        ),
        Index(None, "job_id", "id"),
        Index(None, "problem_key", "id"),
        CheckConstraint("state = 'rejected' OR median_ms IS NOT NULL", name="measured"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    device_model: Mapped[str]
    device_uuid: Mapped[str]
    environment: Mapped[str]
    problem_key: Mapped[str]
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    batch: Mapped[int]
    dtype: Mapped[str]
    precision: Mapped[str]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    kernel: Mapped[str]
    kernel_digest: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    config_key: Mapped[str]
    state: Mapped[str]
    stage: Mapped[str | None]
    reason: Mapped[str | None] = mapped_column(Prose)
    median_ms: Mapped[float | None]
    ci95_lo_ms: Mapped[float | None]
    ci95_hi_ms: Mapped[float | None]
    samples: Mapped[int | None]
    limited: Mapped[bool]
    relative_l2: Mapped[float | None]
    max_scaled: Mapped[float | None]
    registers: Mapped[int | None]
    created_at: Mapped[datetime]
    round: Mapped[str]
    policy: Mapped[str | None]
    dropped: Mapped[bool]
    seconds: Mapped[tuple[float, ...]]
    conditions: Mapped[dict[str, Any] | None]
    retaken: Mapped[int]
    compilation: Mapped[dict[str, Any] | None]


class BestRow(Base):
    """The promoted trial of one device model and problem, and the trials of its report round, or reasons for none."""

    __tablename__ = "bests"

    device_model: Mapped[str] = mapped_column(primary_key=True)
    problem_key: Mapped[str] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    naive_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id"))
    tiled_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id"))
    vendor_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id"))
    vendor_reason: Mapped[str | None] = mapped_column(Prose)
    tuned_at: Mapped[datetime]
    default_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id"))
    naive_reason: Mapped[str | None] = mapped_column(Prose)
    tiled_reason: Mapped[str | None] = mapped_column(Prose)
    default_reason: Mapped[str | None] = mapped_column(Prose)


class FaultRow(Base):
    """A config that failed, and the scope in which it is not tried again; an empty scope is every problem."""

    __tablename__ = "faults"
    __table_args__ = (
        UniqueConstraint(
            "device_model",
            "environment",
            "kernel",
            "kernel_digest",
            "config_key",
            "scope",
            "kind",
            name="uq_faults_place",
        ),
    )

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    device_model: Mapped[str]
    environment: Mapped[str]
    kernel: Mapped[str]
    kernel_digest: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    config_key: Mapped[str]
    scope: Mapped[str]
    kind: Mapped[str]
    stage: Mapped[str]
    reason: Mapped[str] = mapped_column(Prose)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    at: Mapped[datetime]


class MissRow(Base):
    """A miss: an untuned shape that was requested."""

    __tablename__ = "misses"

    device_model: Mapped[str] = mapped_column(primary_key=True)
    problem_key: Mapped[str] = mapped_column(primary_key=True)
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    batch: Mapped[int]
    dtype: Mapped[str]
    precision: Mapped[str]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    count: Mapped[int]
    match: Mapped[str]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]


class AnswerRow(Base):
    """A caller's Idempotency-Key, the request it came with, and the first answer, once there is one."""

    __tablename__ = "answers"
    __table_args__ = (Index(None, "service_seconds"),)

    principal: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any] | None]
    body: Mapped[str | None]
    created_at: Mapped[datetime]
    service_seconds: Mapped[float]


class ApiKeyRow(Base):
    """A principal's API key, or what its client certificate grants; of the token only a keyed hash."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str]
    scopes: Mapped[str]
    quota: Mapped[dict[str, Any]]
    digest: Mapped[str | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class CordonRow(Base):
    """A device that serves nothing, by what names it beyond a start."""

    __tablename__ = "cordons"

    device: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(Prose)
    imposed_by: Mapped[str]
    since: Mapped[datetime]


class WorkloadRow(Base):
    """The counted products of a file; `number` is the order in which they came."""

    __tablename__ = "workloads"
    __table_args__ = (UniqueConstraint("id"), Index(None, "principal", "number"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    id: Mapped[str]
    principal: Mapped[str]
    name: Mapped[str] = mapped_column(Prose)
    source: Mapped[str]
    content: Mapped[dict[str, Any]] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime]
    job_id: Mapped[str | None]
    device: Mapped[str | None]


class BestHistoryRow(Base):
    """What became the best of a problem, or stopped to be it; rows are added and never changed."""

    __tablename__ = "best_history"
    __table_args__ = (Index(None, "problem_key", "number"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    event: Mapped[str]
    at: Mapped[datetime]
    device_model: Mapped[str]
    problem_key: Mapped[str]
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    batch: Mapped[int]
    dtype: Mapped[str]
    precision: Mapped[str]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    job_id: Mapped[str | None]
    kernel: Mapped[str]
    kernel_digest: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    environment: Mapped[str]
    median_ms: Mapped[float | None]
    ci95_lo_ms: Mapped[float | None]
    ci95_hi_ms: Mapped[float | None]
    samples: Mapped[int | None]
    policy: Mapped[str | None]
    default_ms: Mapped[float | None]
    vendor_ms: Mapped[float | None]


class ImportRow(Base):
    """A file of results that a principal imported; `counts` are its lines by what became of them."""

    __tablename__ = "imports"
    __table_args__ = (Index(None, "principal", "created_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str]
    format: Mapped[str]
    sha256: Mapped[str]
    nbytes: Mapped[int]
    counts: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]


class ImportedSpaceRow(Base):
    """The results of one space of an import, packed, and the fastest of them; `kind` is space or best."""

    __tablename__ = "imported_spaces"
    __table_args__ = (Index(None, "import_id", "number"), Index(None, "problem_key", "number"))

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    import_id: Mapped[str] = mapped_column(ForeignKey("imports.id"))
    kind: Mapped[str]
    device: Mapped[str]
    problem_key: Mapped[str]
    kernel: Mapped[str]
    best_config: Mapped[dict[str, Any] | None]
    best_ms: Mapped[float | None]
    packed: Mapped[bytes]


class CacheRow(Base):
    """An opaque result of another tuner; `number` is the order in which they came."""

    __tablename__ = "cache_entries"
    __table_args__ = (UniqueConstraint("principal", "namespace", "key"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    principal: Mapped[str]
    namespace: Mapped[str]
    key: Mapped[str]
    body: Mapped[bytes]
    media: Mapped[str]
    etag: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]


class ProfileRow(Base):
    """A profile of a problem's kernels on a device; `content` is what was found of each. Its id is its job's."""

    __tablename__ = "profiles"
    __table_args__ = (UniqueConstraint("id"), Index(None, "problem_key", "number"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    id: Mapped[str]
    device: Mapped[str]
    device_model: Mapped[str]
    environment: Mapped[str]
    problem_key: Mapped[str]
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    batch: Mapped[int]
    dtype: Mapped[str]
    precision: Mapped[str]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime]
