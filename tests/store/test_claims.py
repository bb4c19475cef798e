"""Services that share a PostgreSQL: a job is claimed by one, and whoever lost it writes nothing of it any more."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from app.errors import ClaimLost, DatabaseOwned
from app.store.database import Database, joined, migrate, open_database, owned
from app.store.repository import BestRepository, JobRepository, TrialRepository
from app.store.sharing.claims import REQUESTS, ClaimRepository, HeldClaims
from app.store.sharing.listener import Listener
from app.store.sharing.notices import BEST, JOB, Notice
from tests.support.store.stored_records import JOB as RECORD
from tests.support.store.stored_records import MODEL, NOW, TRIAL, best
from tests.support.waiting import until

pytest_plugins = ("tests.support.store.databases",)

MODELS = json.dumps([MODEL])
LEASE = 30.0


class Member:
    """One of several services on a database."""

    def __init__(self, database: Database, name: str) -> None:
        self.database, self.held = database, HeldClaims(name)
        database.share(self.held)

    def claims(self, work: Callable[[ClaimRepository], Any]) -> Any:
        return self.database.write(lambda session: work(ClaimRepository(session, self.held.service, LEASE)))

    def claim(self) -> str | None:
        found = self.claims(lambda claims: claims.claim({"tune"}, [MODELS], list(self.held.fences()), "idle"))
        if found is None:
            return None
        self.held.hold(*found)
        return str(found[0])


@contextmanager
def members(url: str, *names: str) -> Iterator[list[Member]]:
    migrate(url)
    with ExitStack() as stack:
        yield [Member(stack.enter_context(open_database(url)), name) for name in names]


def add(member: Member, *job_ids: str) -> None:
    for job_id in job_ids:
        job = replace(RECORD, id=job_id, device_models=MODELS)
        member.database.write(lambda session, job=job: JobRepository(session).add(job))  # type: ignore[misc]


def lapse(member: Member, change: str = "lease_until = now() - interval '1 second'") -> None:
    member.database.write(lambda session: session.execute(text(f"UPDATE jobs SET {change}")))  # noqa: S608 - of this file


def test_services_share_a_database_and_a_command_waits_for_them(postgres_url: str) -> None:
    with joined(postgres_url, "one") as is_shared, joined(postgres_url, "two"):
        assert is_shared
        with pytest.raises(DatabaseOwned), owned(postgres_url, "a command"):
            pass
    with owned(postgres_url, "a command"), pytest.raises(DatabaseOwned), joined(postgres_url, "three"):
        pass


def test_sqlite_has_one_owner_still(sqlite_url: str) -> None:
    with joined(sqlite_url, "one") as is_shared, pytest.raises(DatabaseOwned), joined(sqlite_url, "two"):
        pass
    assert not is_shared


def test_each_job_is_claimed_once(postgres_url: str) -> None:
    claimed: list[str] = []

    def claim_all(member: Member) -> None:
        while (job_id := member.claim()) is not None:
            claimed.append(job_id)

    with members(postgres_url, "a", "b", "c") as services:
        add(services[0], *map(str, range(30)))
        threads = [threading.Thread(target=claim_all, args=(one,)) for one in services]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(claimed) == Counter(map(str, range(30)))


def test_a_lapsed_claim_is_taken_over_and_the_first_writes_nothing_more(postgres_url: str) -> None:
    def promote(session: Any) -> None:
        TrialRepository(session).redo("job", MODEL, TRIAL.problem)
        BestRepository(session).promote(best(replace(TRIAL, id=1)))

    with members(postgres_url, "frozen", "other") as (frozen, other):
        add(frozen, "job")
        assert frozen.claim() == "job"
        frozen.database.write(lambda session: TrialRepository(session).add(TRIAL))
        assert other.claim() is None
        lapse(frozen)
        assert other.claim() == "job"
        writes: list[Callable[[Any], object]] = [
            lambda session: TrialRepository(session).add(replace(TRIAL, kernel="naive")),
            lambda session: JobRepository(session).start("job", 1, NOW),
            lambda session: JobRepository(session).advance("job", 1.0),
            lambda session: JobRepository(session).finish("job", "failed", None, None, NOW),
            lambda session: JobRepository(session).postpone("job"),
            promote,
        ]
        for write in writes:
            with pytest.raises(ClaimLost):
                frozen.database.write(write)
        assert frozen.held.is_lost("job")
        other.database.write(lambda session: JobRepository(session).finish("job", "succeeded", None, None, NOW))
        kept, trials, bests = other.database.read(
            lambda session: (
                JobRepository(session).get("job"),
                TrialRepository(session).of_job("job"),
                BestRepository(session).all(),
            )
        )
    assert kept is not None
    assert (kept.state, len(trials), bests) == ("succeeded", 1, [])


def test_a_fence_rises_with_each_claim_and_a_renewal_tells_what_is_lost(postgres_url: str) -> None:
    with members(postgres_url, "a", "b") as (one, two):
        add(one, "job", "kept")
        assert (one.claim(), one.claim()) == ("job", "kept")
        lapse(one, "lease_until = now() - interval '1 second' WHERE id = 'job'")
        assert two.claim() == "job"
        assert (one.held.fence("job"), two.held.fence("job")) == (1, 2)
        assert one.claims(lambda claims: claims.renew(one.held.fences())) == {"job"}


def test_what_is_given_back_is_free_at_once(postgres_url: str) -> None:
    with members(postgres_url, "a", "b") as (one, two):
        add(one, "job")
        one.claim()
        one.claims(lambda claims: claims.release(one.held.fences()))
        assert two.claim() == "job"


def test_a_product_whose_service_is_gone_is_to_be_ended_and_one_that_is_made_is_not(postgres_url: str) -> None:
    with members(postgres_url, "a", "b") as (one, two):
        for name in ("made", "left"):
            product = replace(RECORD, id=name, kind="matmul")
            one.database.write(lambda session, product=product: JobRepository(session).add(product))  # type: ignore[misc]
        one.claims(lambda claims: claims.take("made"))
        assert two.claims(lambda claims: claims.lapsed("matmul")) == ["left"]
        lapse(one)
        assert sorted(two.claims(lambda claims: claims.lapsed("matmul"))) == ["left", "made"]


@pytest.mark.rotating
@pytest.mark.parametrize(
    "change", [f"version = {REQUESTS + 1}", "device_models = '[\"another\"]'", "state = 'cancelled'"]
)
def test_what_a_service_cannot_run_it_leaves(postgres_url: str, change: str) -> None:
    with members(postgres_url, "a") as (one,):
        add(one, "job")
        lapse(one, change)
        assert one.claim() is None


def test_a_request_is_not_changed_under_another_service(postgres_url: str) -> None:
    with members(postgres_url, "a", "b") as (one, two):
        add(one, "job")
        assert one.database.write(lambda session: JobRepository(session).upgrade("job", {"more": 1}, "same"))
        two.claim()
        assert not one.database.write(lambda session: JobRepository(session).upgrade("job", {"more": 2}, "same"))
        assert two.database.write(lambda session: JobRepository(session).upgrade("job", {"more": 3}, "same"))


def test_a_commit_is_heard_and_what_is_rolled_back_is_not(postgres_url: str) -> None:
    heard: list[Notice] = []
    connected = threading.Event()

    def fail(session: Any) -> None:
        JobRepository(session).add(replace(RECORD, id="rolled back"))
        raise ArithmeticError

    with members(postgres_url, "a") as (one,):
        listener = Listener(postgres_url, "b", heard.extend, connected.set)
        listener.start()
        try:
            assert connected.wait(20)
            with pytest.raises(ArithmeticError):
                one.database.write(fail)
            add(one, "job")
            one.claim()
            trial = one.database.write(lambda session: TrialRepository(session).add(TRIAL))
            one.database.write(lambda session: BestRepository(session).promote(best(replace(TRIAL, id=trial))))
            until(lambda: any(notice.kind == BEST for notice in heard), 20)
        finally:
            listener.stop()
    assert {notice.subject[0] for notice in heard if notice.kind == JOB} == {"job"}
    assert {notice.origin for notice in heard} == {"a"}


@pytest.mark.rotating
def test_a_cut_connection_is_made_anew_and_told(postgres_url: str) -> None:
    connections: list[int] = []
    with members(postgres_url, "a") as (one,):
        listener = Listener(postgres_url, "listener b", lambda _: None, lambda: connections.append(1))
        listener.start()
        try:
            until(lambda: connections, 20)
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener b'"
            one.database.write(lambda session: session.execute(text(cut)))
            until(lambda: len(connections) == 2, 20)
        finally:
            listener.stop()
