"""Log lines: one object a line, or text; traces for faults of ours alone."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.devices.process import Worker, WorkerLink
from app.errors import StoreFailed
from app.observability import logs
from app.observability.request_context import RequestContext, TraceParent, entered
from tests.support.waiting import until

FAULTS = {"key": KeyError("k"), "assertion": AssertionError("a")}
SPOKEN = {"from the worker", "plain words", "  { more of them }"}
OUTSIDE = {"ours": StoreFailed("the database failed:\nit is full"), "disk": OSError(28, "No space left on device")}
CALLER = RequestContext("one-request", TraceParent("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1))


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, app = logging.getLogger(), logging.getLogger("app")
    before = root.handlers[:], root.level, app.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    app.setLevel(before[2])
    logging.captureWarnings(capture=False)


def written(form: logs.LogFormat, capsys: pytest.CaptureFixture[str], error: BaseException | None = None) -> list[str]:
    """The lines of one record."""
    logs.configure(form, "info")
    logging.getLogger("app.test").warning("it %s\n{now}", "failed", exc_info=error)
    return capsys.readouterr().err.splitlines()


def test_a_record_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = written("json", capsys)
    members = json.loads(line)
    moment = datetime.fromisoformat(members.pop("time"))
    assert moment.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)
    assert members == {"level": "warning", "logger": "app.test", "message": "it failed\n{now}"}


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_record_has_the_id_of_its_request(form: logs.LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    with entered(CALLER):
        lines = written(form, capsys)
    if form == "json":
        members = json.loads(lines[0])
        assert (members["request_id"], members["trace_id"]) == ("one-request", "0af7651916cd43dd8448eb211c80319c")
    else:
        assert lines[-1].endswith("[request one-request]")
    assert "one-request" not in "".join(written(form, capsys))


@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_a_disk_did_is_told_without_a_trace(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = OUTSIDE[kind]
    (line,) = written("json", capsys, raised(error))
    members = json.loads(line)
    assert members["exception"] == {"type": type(error).__name__, "text": str(error)}
    assert "trace" not in members
    text = "\n".join(written("text", capsys, raised(error)))
    assert type(error).__name__ in text
    assert "Traceback" not in text


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_ours_has_its_trace_as_one_member(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = written("json", capsys, raised(FAULTS[kind]))
    members = json.loads(line)
    assert members["trace"].startswith("Traceback")
    assert "in raised" in members["trace"]
    assert "Traceback" in "\n".join(written("text", capsys, raised(FAULTS[kind])))


def raised(error: BaseException) -> BaseException:
    try:
        raise error  # noqa: TRY301 - so that it has a trace
    except BaseException as caught:  # noqa: BLE001 - whichever it is
        return caught


def hold() -> int:
    return 0


def speak(_: int, __: WorkerLink) -> None:
    """Log, warn, and print as a library does."""
    logging.getLogger("app.worker").warning("from the worker")
    os.write(2, b"plain words\n")
    os.write(1, b"  { more of them }\n")


def test_lines_of_a_child_are_objects_with_the_id_of_the_request(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    worker = Worker("the worker", hold, ())
    try:
        for caller in (CALLER, None):
            with entered(caller):
                worker.call(speak)
            told = heard(3, capfd)
            assert {each["message"].removeprefix("the worker: ") for each in told} == SPOKEN
            expected = (None, None) if caller is None else (caller.request_id, caller.trace_id)
            assert {(each.get("request_id"), each.get("trace_id")) for each in told} == {expected}
    finally:
        worker.close()


def heard(count: int, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The next lines on standard error, which are all objects."""
    told: list[dict[str, Any]] = []

    def has_all() -> bool:
        told.extend(json.loads(line) for line in capfd.readouterr().err.splitlines())
        return len(told) >= count

    until(has_all, 60, each=0.01, meanwhile=lambda: told)
    return told
