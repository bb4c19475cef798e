"""A key stands for one request: done once, replayed to whoever sends it again, across restarts too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from time import monotonic

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.errors import KeyInUse, KeyReused, StoreFailed
from app.services.jobs import idempotency
from app.services.jobs.idempotency import Idempotency, IdempotentRequest, fingerprint
from app.services.jobs.service import new_job
from app.services.principal import ANONYMOUS, Principal
from app.store.database import migrate, open_database
from app.store.records import AnswerRecord
from app.store.repository import JobRepository

SAME = fingerprint("POST", "/tune", b"", b"{}")


def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'keys.db'}"


def write(folder: Path, work: Callable[[Session], object]) -> None:
    """Run a transaction on the store, as another of its users."""
    with open_database(store(folder)) as database:
        database.write(work)


@contextmanager
def keys(folder: Path, ttl: float = 60, clock: Callable[[], float] = monotonic) -> Iterator[Idempotency]:
    migrate(store(folder))
    with open_database(store(folder)) as database:
        idempotency = Idempotency(database, ttl, clock)
        idempotency.start()
        yield idempotency


def begun(idempotency: Idempotency, key: str = "k", principal: Principal = ANONYMOUS) -> IdempotentRequest:
    attempt = idempotency.claim(principal, key, SAME)
    assert isinstance(attempt, IdempotentRequest)
    return attempt


def test_first_answer_is_replayed_and_the_key_in_use_before(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        attempt = begun(idempotency)
        with pytest.raises(KeyInUse) as refused:
            idempotency.claim(ANONYMOUS, "k", SAME)
        assert (refused.value.status, refused.value.retry_after) == (409, 1)
        idempotency.answered(attempt, 202, {"Location": "/jobs/1"}, "{}")
        known = idempotency.claim(ANONYMOUS, "k", SAME)
    assert isinstance(known, AnswerRecord)
    assert (known.status, known.headers, known.body) == (202, {"Location": "/jobs/1"}, "{}")


def test_key_of_another_request_is_refused(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        attempt = begun(idempotency)
        for _ in range(2):
            with pytest.raises(KeyReused):
                idempotency.claim(ANONYMOUS, "k", fingerprint("POST", "/tune", b"", b"[]"))
            idempotency.answered(attempt, 202, {}, "{}")
        begun(idempotency, principal=Principal("another caller"))


def test_what_came_to_nothing_may_be_tried_again(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        idempotency.given_up(begun(idempotency))
        begun(idempotency)


def noted(folder: Path, attempt: IdempotentRequest, state: str) -> str:
    """Have the attempt make a job, which stands as it is said to."""
    job = new_job("matmul", {})
    write(folder, lambda session: JobRepository(session).add(job))
    write(folder, lambda session: attempt.record_job(session, job.id))
    if state != job.state:
        write(folder, lambda session: JobRepository(session).finish(job.id, state, None, None, job.created_at))
    return job.id


def test_an_error_is_the_first_answer_where_there_was_a_job(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        for key, state in (("failed", "failed"), ("made", "succeeded")):
            attempt = begun(idempotency, key)
            noted(tmp_path, attempt, state)
            idempotency.failed(attempt, 422, {"content-type": "x/y"}, "{}")
            known = idempotency.claim(ANONYMOUS, key, SAME)
            assert isinstance(known, AnswerRecord)
            assert (known.status, known.headers, known.body) == (422, {"content-type": "x/y"}, "{}")
        idempotency.failed(begun(idempotency, "refused"), 422, {}, "{}")
        begun(idempotency, "refused")


@pytest.mark.parametrize(("state", "free"), [("failed", True), ("cancelled", True), ("succeeded", False)])
def test_a_key_that_is_given_up_is_free_unless_its_job_came_to_something(
    tmp_path: Path, state: str, *, free: bool
) -> None:
    with keys(tmp_path) as idempotency:
        for key, stands in (("ended", state), ("under way", "queued")):
            attempt = begun(idempotency, key)
            job_id = noted(tmp_path, attempt, stands)
            idempotency.given_up(attempt)
            known = idempotency.claim(ANONYMOUS, key, SAME)
            if key == "ended" and free:
                assert isinstance(known, IdempotentRequest)
            else:
                assert isinstance(known, AnswerRecord)
                assert (known.status, known.job_id) == (None, job_id)


@contextmanager
def failing(folder: Path, change: str) -> Iterator[None]:
    """The database takes no such change of an answer."""
    fault = f"CREATE TRIGGER fault BEFORE {change} ON answers BEGIN SELECT a_function_that_is_not_there(); END"
    write(folder, lambda session: session.execute(text(fault)))
    try:
        yield
    finally:
        write(folder, lambda session: session.execute(text("DROP TRIGGER fault")))


def test_an_answer_that_cannot_be_written_leaves_the_key_to_its_job(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        attempt = begun(idempotency)
        job_id = noted(tmp_path, attempt, "queued")
        with failing(tmp_path, "UPDATE"), pytest.raises(StoreFailed):
            idempotency.answered(attempt, 202, {}, "{}")
        known = idempotency.claim(ANONYMOUS, "k", SAME)
    assert isinstance(known, AnswerRecord)
    assert (known.status, known.job_id) == (None, job_id)


def test_failed_request_frees_its_key_though_unwritten(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        attempt = begun(idempotency)
        with failing(tmp_path, "DELETE"), pytest.raises(StoreFailed):
            idempotency.given_up(attempt)
        again = idempotency.claim(ANONYMOUS, "k", fingerprint("POST", "/tune", b"", b"[]"))
        assert isinstance(again, IdempotentRequest)
        with pytest.raises(KeyInUse):
            idempotency.claim(ANONYMOUS, "k", fingerprint("POST", "/tune", b"", b"[]"))


def test_a_key_is_forgotten_once_its_time_is_over(tmp_path: Path) -> None:
    with keys(tmp_path, ttl=0) as idempotency:
        idempotency.answered(begun(idempotency), 202, {}, "{}")
        begun(idempotency)


def test_a_key_outlasts_a_jump_of_the_wall_clock_and_the_time_in_which_the_service_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uptime = [1000.0]
    with keys(tmp_path, clock=lambda: uptime[0]) as kept:
        kept.answered(begun(kept, "first"), 202, {}, "{}")
        uptime[0] += 40
        kept.answered(begun(kept, "second"), 202, {}, "{}")
        monkeypatch.setattr(idempotency, "datetime", DaysLater)
        assert isinstance(kept.claim(ANONYMOUS, "first", SAME), AnswerRecord)
    uptime[0] = 5.0  # the host was started again
    with keys(tmp_path, clock=lambda: uptime[0]) as kept:
        assert isinstance(kept.claim(ANONYMOUS, "first", SAME), AnswerRecord)
        uptime[0] += 21
        begun(kept, "first")  # 61 s of running after it came
        assert isinstance(kept.claim(ANONYMOUS, "second", SAME), AnswerRecord)


class DaysLater(datetime):
    """A wall clock that is two days late."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> DaysLater:
        return super().now(tz) + timedelta(days=2)


def test_a_restart_keeps_answers_and_jobs_and_forgets_what_made_neither(tmp_path: Path) -> None:
    with keys(tmp_path) as idempotency:
        begun(idempotency, "nothing")
        idempotency.answered(begun(idempotency, "answer"), 202, {}, "{}")
        attempt, job = begun(idempotency, "job"), new_job("tune", {})
        write(tmp_path, lambda session: JobRepository(session).add(job))
        write(tmp_path, lambda session: attempt.record_job(session, job.id))
    with keys(tmp_path) as idempotency:
        begun(idempotency, "nothing")
        answer, made = (idempotency.claim(ANONYMOUS, key, SAME) for key in ("answer", "job"))
    assert isinstance(answer, AnswerRecord)
    assert answer.status == 202
    assert isinstance(made, AnswerRecord)
    assert (made.status, made.job_id) == (None, job.id)


def test_of_fifty_at_once_one_is_the_first(tmp_path: Path) -> None:
    found: list[object] = []
    with keys(tmp_path) as idempotency:

        def ask() -> None:
            try:
                found.append(idempotency.claim(ANONYMOUS, "k", SAME))
            except KeyInUse as refused:
                found.append(refused)

        threads = [threading.Thread(target=ask) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(type(each).__name__ for each in found) == ["IdempotentRequest"] + ["KeyInUse"] * 49


def test_requests_differ_in_method_path_query_and_body() -> None:
    bodies = ((b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"ab", b"d"))
    heads = (
        ("POST", "/tune", b"m=1"),
        ("PUT", "/tune", b"m=1"),
        ("POST", "/matmul", b"m=1"),
        ("POST", "/tune", b"m=2"),
    )
    requests = [(*head, *body) for head in heads for body in bodies]
    assert len({fingerprint(*head, *body) for head in heads for body in bodies}) == len(requests)
    assert fingerprint("POST", "/tune", b"", b"x") == fingerprint("POST", "/tune", b"", memoryview(b"x"))
