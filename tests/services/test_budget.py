"""A tune's budget on the real device: what does not fit is refused, the rest ends in time, cancelled or not."""

from __future__ import annotations

from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from app.errors import BudgetTooSmall
from app.services.jobs.service import ENDED
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.store.records import JobRecord
from app.store.repository import FaultRepository
from app.tuning.budget import Budget
from kernels.problem import Problem
from tests.support.waiting import until

WITHIN = 2.0  # seconds from a cancellation to the job's end


def submit(
    service: Service,
    *problems: Problem,
    kernels: tuple[str, ...] | None = None,
    retune: bool = False,
    **budget: Any,
) -> JobRecord:
    return service.tuning.submit(TuneSpec(problems, kernels=kernels, budget=Budget(**budget), retune=retune), ANONYMOUS)


def wait_for(service: Service, job: JobRecord, phase: str) -> None:
    def goes_on() -> None:
        assert service.jobs.get(job.id).state not in ENDED

    until(lambda: service.jobs.get(job.id).phase == phase, each=0.01, meanwhile=goes_on)


def test_what_no_trial_of_fits_is_refused_with_the_seconds_that_it_takes(service: Service) -> None:
    with pytest.raises(BudgetTooSmall, match=r"--seconds \d+") as refusal:
        submit(service, Problem(8192, 8192, 8192), seconds=2.0)
    needed = refusal.value.facts["needed_seconds"]
    assert isinstance(needed, int)
    assert needed > 10


def test_the_default_budget_is_one_too(service: Service) -> None:
    with pytest.raises(BudgetTooSmall, match="over the budget of 20 s"):
        submit(service, Problem(16384, 16384, 16384))


def test_two_shapes_need_more_than_one(service: Service) -> None:
    needed: list[Any] = []
    for count in (1, 2):
        with pytest.raises(BudgetTooSmall) as refusal:
            submit(service, *(Problem(8192, 8192, 8192 + 64 * number) for number in range(count)), seconds=2.0)
        needed.append(refusal.value.facts["needed_seconds"])
    assert needed[1] > 1.5 * needed[0]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["preparing", "search"])
def test_a_job_is_cancelled_in_whichever_phase_and_the_next_one_runs(service: Service, phase: str) -> None:
    job = submit(service, Problem(2048, 2048, 1999), seconds=600.0, retune=True)
    wait_for(service, job, phase)
    service.jobs.cancel(job.id, ANONYMOUS)
    assert service.jobs.wait(job.id, 60).state == "cancelled"
    assert service.fleet.unit().products.pid is not None
    after = submit(service, Problem(20, 21, 22), seconds=100.0, trials=1, kernels=("naive",), retune=True)
    assert service.jobs.wait(after.id, 150).state == "succeeded"
    device = service.fleet.unit().device
    faults = service.database.read(lambda session: FaultRepository(session).of(device.model, device.environment))
    assert [fault for fault in faults if fault.job_id == job.id] == []


@pytest.mark.slow
def test_a_job_is_cancelled_while_its_strategy_thinks(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    thinks, go = Event(), Event()

    def think(*_: object) -> None:
        thinks.set()
        go.wait(60)

    monkeypatch.setattr("app.tuning.search.search_task.strategy", think)
    job = submit(service, Problem(19, 20, 21), seconds=600.0, kernels=("naive",), retune=True)
    try:
        assert thinks.wait(60)
        service.jobs.cancel(job.id, ANONYMOUS)
        assert service.jobs.wait(job.id, 30).state == "cancelled"
    finally:
        go.set()


@pytest.mark.timing
@pytest.mark.parametrize("seconds", [0.0, 1.0, 4.0])
def test_a_cancelled_job_ends_within_two_seconds(service: Service, seconds: float) -> None:
    job = submit(service, Problem(2048, 2048, 2048), seconds=600.0, retune=True)
    wait_for(service, job, "preparing")
    sleep(seconds)
    asked = monotonic()
    service.jobs.cancel(job.id, ANONYMOUS)
    assert service.jobs.wait(job.id, 60).state == "cancelled"
    assert monotonic() - asked <= WITHIN


@pytest.mark.timing
@pytest.mark.parametrize("seconds", [2.0, 6.0])
def test_a_job_takes_no_longer_than_its_budget(service: Service, seconds: float) -> None:
    job = submit(service, Problem(300, 301, 302), seconds=seconds, retune=True)
    ended = service.jobs.wait(job.id, 60)
    assert ended.started_at is not None
    assert ended.finished_at is not None
    assert (ended.finished_at - ended.started_at).total_seconds() <= 1.1 * seconds + 1


def test_a_finished_product_has_done_one_of_one(service: Service) -> None:
    with service.matmul.reserve(Problem(3, 4, 5)) as placed:
        placed.a[...], placed.b[...] = 1, 1
        job = service.results.create(placed)
        service.results.make(job.id, placed, None, None)
    ended = service.jobs.get(job.id)
    assert (ended.state, ended.done, ended.total) == ("succeeded", 1, 1)
    last = service.jobs.events(job.id)[-1]
    assert (last.name, last.data["done"], last.data["total"]) == ("end", 1, 1)
