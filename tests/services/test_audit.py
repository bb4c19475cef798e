"""The audit log: whole lines, for its owner only, never in the way, and never full of strangers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.services.access import audit
from app.services.access.audit import AuditEntry, AuditLog

TUNE = AuditEntry("ann", "POST", "/tune", "10.0.0.7", 202, job="4a1f")
DENIED = AuditEntry("anonymous", "GET", "/jobs", "10.0.0.8", 401, code="unauthenticated")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[AuditLog]:
    log = AuditLog(tmp_path / "audit.jsonl", clock)
    yield log
    if log.is_writing:
        log.stop()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "audit.jsonl").read_text().splitlines()]


def test_an_entry_is_a_line_that_only_the_owner_reads(log: AuditLog, tmp_path: Path) -> None:
    log.start()
    log.changed(TUNE)
    log.denied(DENIED)
    log.stop()
    first, second = lines(tmp_path)
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "principal": "ann", "method": "POST", "path": "/tune", "peer": "10.0.0.7", "status": 202, "job": "4a1f"
    }  # fmt: skip
    assert (second["status"], second["code"]) == (401, "unauthenticated")
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_path_with_line_breaks_is_one_line(log: AuditLog, tmp_path: Path) -> None:
    log.start()
    log.changed(AuditEntry("a\nb", "PUT", '/matrices/"\r\n{}\u2028', "", 201))
    log.stop()
    (only,) = lines(tmp_path)
    assert only["path"] == '/matrices/"\r\n{}\u2028'


def test_denials_are_so_many_a_minute_and_the_rest_are_counted(log: AuditLog, clock: Clock, tmp_path: Path) -> None:
    for _ in range(1000):
        log.denied(DENIED)
    log.changed(TUNE)
    clock.now += 60
    log.denied(DENIED)
    log.start()
    log.stop()
    written = lines(tmp_path)
    assert len(written) == 60 + 1 + 1
    assert [line["left_out"] for line in written if "left_out" in line] == [940]


@pytest.mark.rotating
def test_lines_that_the_disk_does_not_keep_up_with_are_counted(log: AuditLog, tmp_path: Path) -> None:
    for _ in range(5000):
        log.changed(TUNE)
    log.start()
    while not log.is_idle:
        pass
    log.changed(TUNE)
    log.stop()
    written = lines(tmp_path)
    assert len(written) == 4097
    assert written[-1]["left_out"] == 904


def test_the_file_is_rotated(log: AuditLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_FILE_BYTES", 2000)
    log.start()
    for _ in range(100):
        log.changed(TUNE)
    log.stop()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, 5))]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(tmp_path / "missing" / "audit.jsonl")
    log.start()
    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            log.changed(TUNE)
        log.stop()
    assert [record.message for record in caplog.records if "audit log" in record.message] == [
        f"the audit log {tmp_path / 'missing' / 'audit.jsonl'} cannot be written: its lines are lost"
    ]
