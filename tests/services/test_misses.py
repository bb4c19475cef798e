"""Misses: what was answered by less than an exact config is counted, stored, and tuned by a device that is idle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import UnknownMiss
from app.main import opened
from app.services.best.lookup import BestConfigs
from app.services.best.misses import Miss, MissCounter
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.background import BackgroundTuning
from app.services.tuning.request import TuneSpec
from app.store.records import BestRecord, TrialRecord
from app.tuning.budget import Budget
from kernels.device import Device
from kernels.problem import Problem
from tests.support.services.service_settings import settings
from tests.support.services.trial_rows import trial
from tests.support.waiting import until


def best(row: TrialRecord) -> BestRecord:
    beside = dict.fromkeys(("naive", "tiled", "vendor", "vendor_reason"))
    return BestRecord(row.device_model, row.problem, row, tuned_at=row.created_at, **beside)


@pytest.fixture
def device(service: Service) -> Device:
    return service.fleet.unit().device


def test_an_answer_that_is_not_exact_is_counted_and_an_exact_one_is_not(service: Service, device: Device) -> None:
    misses = MissCounter(service.database)
    one, other = Problem(71, 72, 73), Problem(74, 75, 76)
    for problem in (one, other, other):
        misses.noted(service.best.answer(problem))
    known = replace(trial(device), problem=Problem(77, 78, 79))
    exact = BestConfigs(service.fleet, [best(known)]).answer(known.problem)
    assert misses.noted(exact) is None
    assert one not in {miss.problem for miss in misses.most_frequent()}, "who reads does not write"
    misses.flush()
    counts = {miss.problem: miss.count for miss in misses.most_frequent()}
    assert (counts[one], counts[other]) == (1, 2)
    assert exact.problem not in counts
    misses.noted(service.best.answer(other))
    misses.flush()
    misses.forget(device.model, other)
    assert other not in {miss.problem for miss in misses.most_frequent()}
    assert one in {miss.problem for miss in misses.most_frequent(device_model=device.model)}
    assert list(misses.most_frequent(device_model="another")) == []
    misses.forget(device.model, one)


def test_a_dismissed_shape_is_forgotten_until_it_is_asked_for_again(service: Service, device: Device) -> None:
    misses, stored, fresh = MissCounter(service.database), Problem(91, 92, 93), Problem(94, 95, 96)
    misses.note(Miss(device.model, stored, "default"))
    misses.flush()
    misses.note(Miss(device.model, fresh, "default"))
    for problem in (stored, fresh):
        misses.dismiss(device.model, problem)
        with pytest.raises(UnknownMiss, match=problem.key):
            misses.dismiss(device.model, problem)
    misses.flush()
    assert not {stored, fresh} & {miss.problem for miss in misses.most_frequent(1000)}
    misses.note(Miss(device.model, stored, "default"))
    misses.flush()
    assert {miss.problem: miss.count for miss in misses.most_frequent(1000)}[stored] == 1
    misses.dismiss(device.model, stored)


def test_what_is_left_is_stored_at_the_end(service: Service, device: Device) -> None:
    problem = Problem(77, 78, 79)
    misses = MissCounter(service.database)
    misses.start()
    misses.note(Miss(device.model, problem, "default"))
    misses.stop()
    stored = {miss.problem: miss for miss in MissCounter(service.database).most_frequent()}
    assert (stored[problem].count, stored[problem].match) == (1, "default")
    misses.forget(device.model, problem)


def test_untuned_product_is_a_miss_unless_its_kernel_was_forced(service: Service) -> None:
    for kernel, problem in ((None, Problem(3, 4, 6)), ("naive", Problem(3, 4, 7))):
        with service.matmul.reserve(problem) as placed:
            placed.a[...], placed.b[...] = 1, 1
            service.matmul.multiply(placed, kernel=kernel)
    service.misses.flush()
    wanted = {miss.problem for miss in service.misses.most_frequent()}
    assert Problem(3, 4, 6) in wanted
    assert Problem(3, 4, 7) not in wanted


def test_an_idle_device_is_given_the_most_wanted_shape_each_once(service: Service, device: Device) -> None:
    misses = MissCounter(service.database)
    often, seldom = Problem(83, 84, 85), Problem(86, 87, 88)
    for problem in (often, often, seldom):
        misses.note(Miss(device.model, problem, "nearest"))
    idle = BackgroundTuning(service.database, BestConfigs(service.fleet), misses, lambda: 60.0)
    asked = [spec.problems[0] for spec in iter(lambda: idle.next(device), None)]
    assert [problem for problem in asked if problem in {often, seldom}] == [often, seldom]
    assert len(asked) == len(set(asked))
    for problem in (often, seldom):
        misses.forget(device.model, problem)


def test_nothing_is_tuned_while_products_come(service: Service, device: Device) -> None:
    misses = MissCounter(service.database)
    misses.note(Miss(device.model, Problem(89, 84, 85), "default"))
    assert BackgroundTuning(service.database, BestConfigs(service.fleet), misses, lambda: 1.0).next(device) is None
    misses.forget(device.model, Problem(89, 84, 85))


@pytest.mark.slow
def test_idle_service_tunes_misses_and_revalidates_stale_bests(tmp_path: Path) -> None:
    stale, wanted = Problem(20, 21, 22), Problem(30, 31, 32)
    with opened(settings(tmp_path), "the first") as service:
        job = service.tuning.submit(TuneSpec((stale,), kernels=("tiled",), budget=Budget(trials=4)), ANONYMOUS)
        assert service.jobs.wait(job.id, 60).state == "succeeded"
        record = service.best.record(service.fleet.unit().device.model, stale)
        assert record is not None
        tried = {trial.config for trial in service.jobs.trials(job_id=job.id, limit=1000)}
        service.best.promoted([replace(record, trial=replace(record.trial, environment="another driver"))])
        assert service.best.answer(stale).match == "stale"
        service.misses.noted(service.best.answer(wanted))
        idle = BackgroundTuning(service.database, service.best, service.misses, lambda: 60.0)
        first, second = iter(lambda: idle.next(service.fleet.unit().device), None)
        assert (first.problems, second.problems) == ((wanted,), (stale,))
        assert first.configs is None
        assert second.configs is not None
        assert 1 <= len(second.configs) <= 8
        assert second.devices == (service.fleet.unit().device.id,)
        assert {one.config for one in second.configs} <= tried


@pytest.mark.slow
def test_idle_work_yields_to_an_order_and_goes_on_after_it(tmp_path: Path) -> None:
    wanted, ordered = Problem(150, 151, 152), Problem(24, 25, 26)
    with opened(settings(tmp_path).model_copy(update={"idle_tuning": "on"}), "the tests") as service:
        service.misses.noted(service.best.answer(wanted))
        until(lambda: bool(service.jobs.list(state="running")))
        (idle,) = service.jobs.list(state="running")
        assert idle.request["problems"][0]["m"] == 150
        until(lambda: bool(service.jobs.trials(job_id=idle.id)))
        job = service.tuning.submit(TuneSpec((ordered,), budget=Budget(trials=4)), ANONYMOUS)
        until(lambda: service.jobs.get(job.id).state != "queued", 10)
        assert service.jobs.get(idle.id).state in {"queued", "running"}
        assert service.jobs.wait(job.id, 60).state == "succeeded"
        ended = service.jobs.wait(idle.id, 90)
        assert ended.state == "succeeded"
        assert service.best.answer(wanted).match == "exact"
        assert service.tuning.idle_trials > 0
        assert wanted not in {miss.problem for miss in service.misses.most_frequent()}
