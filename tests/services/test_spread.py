"""A job's shapes on two equal devices: PoCL shows its CPU twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.main import opened
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.tuning.budget import Budget
from kernels.problem import Problem
from tests.support.services.service_settings import settings
from tests.support.waiting import until

ONE, OTHER = "opencl:0", "opencl:1"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POCL_DEVICES", "pthread pthread")
        with opened(settings(folder), "the test") as service:
            assert [unit.device.id for unit in service.fleet.units] == [ONE, OTHER]
            yield service


def spec(*sizes: int, trials: int = 3, seconds: float = 200.0, devices: tuple[str, ...] = ()) -> TuneSpec:
    problems = tuple(Problem(size, size, size) for size in sizes)
    return TuneSpec(problems, devices, ("tiled",), "random", Budget(trials * len(sizes), seconds))


@pytest.mark.slow
def test_both_devices_tune_the_shapes_of_one_job(pair: Service) -> None:
    job = pair.tuning.submit(spec(24, 32, 40, 48, 56, 64), ANONYMOUS)
    until(lambda: {each.device for each in pair.jobs.get(job.id).devices} == {ONE, OTHER})
    ended = pair.jobs.wait(job.id, 150)
    assert ended.state == "succeeded"
    assert ended.result is not None
    told = Counter(each["device"] for each in ended.result["best"])
    assert set(told) == {ONE, OTHER}
    assert sum(told.values()) == 6
    trials = Counter(
        (trial.problem.key, trial.kernel, trial.config) for trial in pair.jobs.trials(job_id=job.id, round="search")
    )
    assert max(trials.values()) == 1


@pytest.mark.slow
def test_a_device_that_is_named_tunes_alone(pair: Service) -> None:
    job = pair.tuning.submit(spec(26, 34, 42, devices=(OTHER,)), ANONYMOUS)
    ended = pair.jobs.wait(job.id, 150)
    assert ended.result is not None
    assert {each["device"] for each in ended.result["best"]} == {OTHER}


@pytest.mark.slow
def test_two_jobs_of_one_shape_run_at_the_same_time(pair: Service) -> None:
    jobs = [pair.tuning.submit(spec(size, trials=30, seconds=30.0), ANONYMOUS).id for size in (72, 80)]
    until(lambda: all(pair.jobs.get(job).state == "running" and pair.jobs.get(job).devices for job in jobs))
    at = [{each.device for each in pair.jobs.get(job).devices} for job in jobs]
    assert at[0] != at[1]
    for job in jobs:
        pair.jobs.cancel(job, ANONYMOUS)
        assert pair.jobs.wait(job, 20).state == "cancelled"


@pytest.mark.slow
def test_a_cancelled_job_ends_on_both_devices(pair: Service) -> None:
    job = pair.tuning.submit(spec(25, 33, 41, 49, trials=40, seconds=60.0), ANONYMOUS)
    until(lambda: len(pair.jobs.get(job.id).devices) == 2)
    pair.jobs.cancel(job.id, ANONYMOUS)
    assert pair.jobs.wait(job.id, 20).state == "cancelled"
    following = pair.tuning.submit(spec(27, 35), ANONYMOUS)
    assert pair.jobs.wait(following.id, 150).state == "succeeded"


@pytest.mark.slow
def test_a_job_that_is_cancelled_while_it_waits_for_a_device_ends_at_once(pair: Service) -> None:
    busy = pair.tuning.submit(spec(88, trials=60, seconds=60.0, devices=(OTHER,)), ANONYMOUS)
    until(lambda: pair.jobs.get(busy.id).state == "running")
    both = pair.tuning.submit(spec(28, devices=(ONE, OTHER)), ANONYMOUS)
    until(lambda: any(each.shapes == 1 for each in pair.jobs.get(both.id).devices))
    pair.jobs.cancel(both.id, ANONYMOUS)
    assert pair.jobs.wait(both.id, 5).state == "cancelled"
    pair.jobs.cancel(busy.id, ANONYMOUS)
    assert pair.jobs.wait(busy.id, 20).state == "cancelled"


@pytest.mark.slow
def test_a_larger_budget_calls_back_a_device_that_had_left(pair: Service) -> None:
    small, large = spec(29, 37, trials=3, seconds=40.0), spec(29, 37, trials=9, seconds=400.0)
    job = pair.tuning.submit(small, ANONYMOUS)
    until(lambda: sum(each.shapes for each in pair.jobs.get(job.id).devices) >= 1 or pair.jobs.get(job.id).result)
    raised = pair.tuning.submit(large, ANONYMOUS)
    ended = pair.jobs.wait(raised.id, 150)
    assert ended.state == "succeeded"
    assert ended.result is not None
    assert len(ended.result["best"]) == 2
    for problem in large.problems:
        found = pair.jobs.trials(job_id=raised.id, round="search", kernel="tiled", problem_key=problem.key)
        assert len(found) > 3


def multiplied(service: Service, size: int, device: str | None = None) -> str:
    """The device that made a product of ones."""
    with service.matmul.reserve(Problem(size, size, size)) as placed:
        placed.a[...] = placed.b[...] = 1
        made = service.matmul.multiply(placed, device_id=device)
        assert (placed.c == size).all()
        return made.device.id


@pytest.mark.rotating
def test_products_at_the_same_time_are_made_on_both_devices(pair: Service) -> None:
    for device in (ONE, OTHER):
        multiplied(pair, 512, device)  # verified there, and what it takes is known
    with ThreadPoolExecutor(8) as pool:
        made = Counter(pool.map(lambda _: multiplied(pair, 512), range(32)))
    assert min(made[ONE], made[OTHER]) >= 2, made  # both share one processor: which is quicker is noise


@pytest.mark.rotating
def test_a_product_takes_the_device_that_ends_it_first(pair: Service) -> None:
    for device in (ONE, OTHER):
        multiplied(pair, 1024, device)
        multiplied(pair, 64, device)
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(multiplied, pair, 1024, ONE)
        until(lambda: pair.matmul.batcher.waiting(pair.fleet.unit(ONE)) or large.done())
        if not large.done():
            assert multiplied(pair, 64) == OTHER
        assert large.result(60) == ONE


def test_jobs_leave_nothing_behind(pair: Service) -> None:
    until(lambda: not pair.tuning.kept, meanwhile=lambda: pair.tuning.kept)
