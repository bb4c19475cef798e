"""Records as the tests store them, and a process that stores some until it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any

from app.store.database import Database
from app.store.records import BestRecord, FaultRecord, JobRecord, MissRecord, TrialRecord
from app.store.repository import BestRepository, JobRepository, TrialRepository
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config

NOW = datetime(2026, 11, 21, 9, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
PROBLEM = Problem(1000, 1200, 800, batch=3, dtype="float64", trans_b=True)
CONFIG = Config((("BN", 64), ("BM", 8), ("BK", 16)))
MODEL = "A device | sm_90 | 132 SMs | 140 GiB"

TRIAL = TrialRecord(
    id=None,
    job_id="job",
    device_model=MODEL,
    device_uuid="GPU-1234",
    environment="driver 1; runtime 2; compiler 3",
    problem=PROBLEM,
    kernel="tiled",
    kernel_digest="ab" * 32,
    config=CONFIG,
    state="measured",
    stage=None,
    reason=None,
    median_ms=0.1 + 0.2,
    ci95_lo_ms=5e-324,
    ci95_hi_ms=1.7976931348623157e308,
    samples=2**40,
    limited=True,
    relative_l2=1e-7 / 3,
    max_scaled=2.0**-30,
    registers=255,
    created_at=NOW,
    policy="graph",
    dropped=True,
    seconds=(1.234567e-3, 2e-9, 3.0),
    conditions={"sm_mhz": 1980.0, "watts": None, "throttled": ["power"]},
    retaken=3,
)
REJECTED = replace(
    TRIAL,
    kernel="naive",
    state="rejected",
    stage="compile",
    reason="out of registers: 'tile' \N{GREEK SMALL LETTER MU}",
    median_ms=None,
    ci95_lo_ms=None,
    ci95_hi_ms=None,
    samples=None,
    limited=False,
    relative_l2=None,
    max_scaled=None,
    registers=None,
    policy=None,
    dropped=False,
    seconds=(),
    conditions=None,
    retaken=0,
)
JOB = JobRecord(
    id="job",
    kind="tune",
    state="queued",
    fingerprint="same work",
    request={"shapes": [{"n": 2, "m": 1}], "device": None, "seconds": 0.1 + 0.2},
    done=0,
    total=7,
    best_ms=None,
    result=None,
    error=None,
    cancel_requested=False,
    created_at=NOW,
    started_at=None,
    finished_at=None,
)
LIMITS = Limits(1024, 49152, 32, 132, 4.8e12, 6.7e13, 3.4e13, registers_per_sm=65536)
DEVICE = Device("cuda:0", "cuda", "A device", "sm_90", "570", "12.9", "NVRTC 12.9", "GPU-1234", 140 * 2**30, LIMITS)


def job(name: str, **other: Any) -> JobRecord:
    return replace(JOB, id=name, **other)


def trial(number: int, **other: Any) -> TrialRecord:
    """A trial that differs from others in its config."""
    return replace(TRIAL, config=Config((("BM", number),)), **other)


def fault(kind: str, **other: Any) -> FaultRecord:
    """A fault of tiled's CONFIG that a job's trial showed; a config that answered wrong is held on every problem."""
    place: dict[str, Any] = {"device_model": MODEL, "environment": TRIAL.environment, "config": CONFIG}
    scope = {"wrong": "", "compile": PROBLEM.family}.get(kind, PROBLEM.key)
    told = {"stage": "verify", "reason": "off by 7", "job_id": "job", "at": NOW.astimezone(UTC)}
    named = {"kernel": TRIAL.kernel, "kernel_digest": TRIAL.kernel_digest, "kind": kind, "scope": scope}
    return FaultRecord(**{**place, **named, **told, **other})


def miss(problem: Problem, count: int = 1, **other: Any) -> MissRecord:
    moment = NOW.astimezone(UTC)
    blank: dict[str, Any] = {"device_model": MODEL, "match": "nearest", "first_at": moment, "last_at": moment}
    return MissRecord(problem=problem, count=count, **{**blank, **other})


def best(record: TrialRecord, **other: Any) -> BestRecord:
    blank: dict[str, Any] = {"naive": None, "tiled": None, "vendor": None, "vendor_reason": None, "tuned_at": NOW}
    return BestRecord(record.device_model, record.problem, record, **{**blank, **other})


def add_job(database: Database, name: str = "job", **other: Any) -> None:
    database.write(lambda session: JobRepository(session).add(job(name, **other)))


def add_trial(database: Database, record: TrialRecord) -> TrialRecord:
    """Save a trial; give it back as the store does."""
    number = database.write(lambda session: TrialRepository(session).add(record))
    return replace(record, id=number, created_at=record.created_at.astimezone(UTC))


def promote(database: Database, *records: BestRecord) -> None:
    database.write(lambda session: BestRepository(session).promote(*records))


@contextmanager
def process(program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A Python process that runs the text; its standard output. It is killed where the block leaves it running."""
    command = [sys.executable, "-c", program, *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout
        finally:
            child.kill()
