"""Who waits for a job costs the database a query at the beginning and one at the end, however many wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from app.api.routes.jobs import ended_within
from app.server.thread_pool import RequestThreads
from app.services.jobs.service import JobService, new_job
from app.services.service import Service
from app.store.database import Database, migrate, open_database
from app.store.repository import JobRepository

WAITING: Final = 50


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    with open_database(url) as database:
        yield database


@pytest.mark.slow
def test_fifty_that_wait_ask_twice_each(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, job, threads = JobService(database), new_job("matmul", {}), RequestThreads()
    database.write(lambda session: JobRepository(session).add(job))
    reads, begun = list[int](), threading.Event()
    read = database.read

    def counted(work: Callable[[Any], Any]) -> Any:
        reads.append(1)
        if len(reads) == WAITING:
            begun.set()
        return read(work)

    async def waited() -> tuple[int, list[str]]:
        service = cast("Service", SimpleNamespace(jobs=jobs, closing=threading.Event()))
        waiting = asyncio.gather(*(ended_within(service, threads, job.id, 30) for _ in range(WAITING)))
        assert await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(1.5)  # three looks, where each looked twice a second
        meanwhile = len(reads)
        await asyncio.to_thread(jobs.end, job.id, "failed", None, {"code": "internal", "error": "for the test"})
        return meanwhile, [each.state for each in await waiting]

    monkeypatch.setattr(database, "read", counted)
    meanwhile, states = asyncio.run(waited())
    threads.stop()
    assert meanwhile == WAITING
    assert states == ["failed"] * WAITING
    assert len(reads) <= 2 * WAITING + 5
