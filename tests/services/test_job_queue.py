"""Who is next on a device: jobs that somebody waits for, then the others, idle work last."""

from __future__ import annotations

import threading

from app.services.tuning.job_queue import JobQueue


def taken(line: JobQueue, count: int) -> list[str | None]:
    return [line.take(0) for _ in range(count)]


def test_jobs_come_in_the_order_of_their_submission() -> None:
    line = JobQueue(lambda _: False)
    for job in "abc":
        line.put(job)
    assert taken(line, 4) == ["a", "b", "c", None]


def test_a_job_that_somebody_waits_for_goes_first_and_idle_work_last() -> None:
    followed = {"c", "d"}
    line = JobQueue(followed.__contains__)
    line.put("idle", idle=True)
    for job in "abcd":
        line.put(job)
    assert taken(line, 5) == ["c", "d", "a", "b", "idle"]


def test_whoever_begins_to_wait_for_a_job_moves_it_ahead() -> None:
    followed: set[str] = set()
    line = JobQueue(followed.__contains__)
    for job in "abc":
        line.put(job)
    assert line.take(0) == "a"
    followed.add("c")
    assert taken(line, 2) == ["c", "b"]


def test_idle_work_does_not_count_as_waiting() -> None:
    line = JobQueue(lambda _: False)
    line.put("idle", idle=True)
    assert len(line) == 0
    line.put("a")
    assert len(line) == 1


def test_a_taker_is_woken_by_the_next_job_and_let_go_by_the_end() -> None:
    line, got = JobQueue(lambda _: False), list[str | None]()
    thread = threading.Thread(target=lambda: got.extend((line.take(), line.take())))
    thread.start()
    line.put("a")
    line.close()
    thread.join(5)
    assert not thread.is_alive()
    assert got in (["a", None], [None, None])
    line.put("b")
    assert line.take() is None
