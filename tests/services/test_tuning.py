"""Tune jobs: durable, joined when equal, resumed without repeating a trial, cancelled within one."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from opening import settings

from app.errors import Invalid, UnknownDevice, UnknownJob, UnknownKernel, Unsupported
from app.main import Service, opened
from app.services.jobs import ENDED
from app.services.principal import ANONYMOUS
from app.services.tuning import TuneOrder
from app.store.records import JobRecord
from kernels import CATALOGUE
from kernels.problem import Problem


def order(*sizes: int, **rest: Any) -> TuneOrder:
    """An order of small shapes with a small budget."""
    problems = tuple(Problem(size, size + 1, size + 2) for size in sizes)
    return TuneOrder(problems, **{"trials": 6, **rest})


def finish(service: Service, job: JobRecord, seconds: float = 60) -> JobRecord:
    return service.jobs.wait(job.id, seconds)


@pytest.fixture(scope="module")
def tuned(service: Service) -> JobRecord:
    return finish(service, service.tuning.submit(order(24, 40), ANONYMOUS))


def test_a_tune_ends_with_a_best_for_every_shape(service: Service, tuned: JobRecord) -> None:
    assert tuned.state == "succeeded"
    assert tuned.result is not None
    assert len(tuned.result["best"]) == 2
    for problem in order(24, 40).problems:
        answer = service.best.answer(problem, exact=True)
        assert answer.match == "exact"
        assert answer.timing is not None
        assert answer.timing.median_ms > 0
        assert answer.accuracy is not None
        assert answer.accuracy.relative_l2 < 1e-6


def test_naive_tiled_and_the_vendor_are_measured_in_the_same_job(service: Service, tuned: JobRecord) -> None:
    baselines = service.best.answer(order(24).problems[0]).baselines
    assert baselines is not None
    for name in ("naive", "tiled", "vendor"):
        assert baselines[name].timing is not None, baselines[name].reason
    assert {trial.kernel for trial in service.jobs.trials(job_id=tuned.id)} == {"naive", "tiled", "vendor"}


def test_the_default_config_is_always_measured(service: Service, tuned: JobRecord) -> None:
    problem, device = order(24).problems[0], service.fleet.unit().device
    measured = {str(trial.config) for trial in service.jobs.trials(job_id=tuned.id, kernel="tiled")}
    assert str(CATALOGUE["tiled"].default(problem, device)) in measured


def test_the_stored_best_is_the_fastest_of_its_trials(service: Service, tuned: JobRecord) -> None:
    problem = order(24).problems[0]
    trials = service.jobs.trials(job_id=tuned.id, problem_key=problem.key, state="measured")
    ours = [trial.median_ms for trial in trials if trial.kernel != "vendor" and trial.median_ms]
    timing = service.best.answer(problem).timing
    assert timing is not None
    assert timing.median_ms == min(ours)


def test_equal_work_is_one_job_while_it_runs_and_after_it_ended(service: Service, tuned: JobRecord) -> None:
    assert service.tuning.submit(order(24, 40), ANONYMOUS).id == tuned.id
    running = service.tuning.submit(order(25), ANONYMOUS)
    assert service.tuning.submit(order(25), ANONYMOUS).id == running.id
    assert service.tuning.submit(order(25, trials=5), ANONYMOUS).id != running.id


def test_retune_measures_again(service: Service, tuned: JobRecord) -> None:
    again = service.tuning.submit(order(24, 40, retune=True), ANONYMOUS)
    assert again.id != tuned.id
    assert finish(service, again).state == "succeeded"


def test_events_tell_every_trial_once_and_the_end_last(service: Service, tuned: JobRecord) -> None:
    events = service.jobs.events(tuned.id)
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    assert [event.name for event in events][-1] == "end"
    trials = [event.data["id"] for event in events if event.name == "trial"]
    assert trials == [trial.id for trial in service.jobs.trials(job_id=tuned.id)]


def test_events_resume_after_any_of_them(service: Service, tuned: JobRecord) -> None:
    events = service.jobs.events(tuned.id)
    for position, event in enumerate(events):
        assert service.jobs.events(tuned.id, event.id) == events[position + 1 :]


def test_a_running_job_is_cancelled_within_one_trial(service: Service) -> None:
    job = service.tuning.submit(order(64, trials=None, seconds=60.0), ANONYMOUS)
    first = threading.Event()
    unsubscribe = service.jobs.subscribe(job.id, first.set)
    while service.jobs.get(job.id).state == "queued":
        sleep(0.02)
    first.wait(20)
    asked = monotonic()
    service.jobs.cancel(job.id, ANONYMOUS)
    ended = finish(service, job, 20)
    unsubscribe()
    assert ended.state == "cancelled"
    assert monotonic() - asked < 5


def test_a_queued_job_is_cancelled_at_once(service: Service) -> None:
    busy = service.tuning.submit(order(65, trials=None, seconds=60.0), ANONYMOUS)
    queued = service.tuning.submit(order(66), ANONYMOUS)
    assert service.jobs.cancel(queued.id, ANONYMOUS).state == "cancelled"
    service.jobs.cancel(busy.id, ANONYMOUS)
    assert finish(service, busy).state == "cancelled"
    assert service.jobs.get(queued.id).state == "cancelled"


def test_a_product_is_served_while_a_tune_runs(service: Service) -> None:
    job = service.tuning.submit(order(128, trials=None, seconds=60.0), ANONYMOUS)
    for _ in range(5):
        with service.matmul.place(Problem(32, 32, 32)) as placed:
            placed.a[...], placed.b[...] = 1, 1
            service.matmul.multiply(placed)
            assert placed.c.max() == placed.c.min() == 32
    service.jobs.cancel(job.id, ANONYMOUS)
    assert finish(service, job).state == "cancelled"


def test_a_killed_trial_child_costs_one_trial(service: Service) -> None:
    job = service.tuning.submit(order(30, trials=6), ANONYMOUS)
    while not service.jobs.trials(job_id=job.id):
        sleep(0.02)
    service.fleet.unit().trials.kill()
    ended = finish(service, job)
    assert ended.state == "succeeded"
    assert len(service.jobs.trials(job_id=job.id, state="rejected")) <= 1


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"device": "cuda:99"}, UnknownDevice),
        ({"kernels": ("magic",)}, UnknownKernel),
        ({"strategy": "prayer"}, Invalid),
    ],
)
def test_an_order_that_cannot_be_worked_is_refused_at_once(
    service: Service, bad: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        service.tuning.submit(order(8, **bad), ANONYMOUS)


def test_a_class_without_a_kernel_is_refused_at_once(service: Service) -> None:
    with pytest.raises(Unsupported):
        service.tuning.submit(TuneOrder((Problem(8, 8, 8, dtype="bfloat16"),)), ANONYMOUS)


def test_an_unknown_job_is_named(service: Service) -> None:
    with pytest.raises(UnknownJob, match="nothing"):
        service.jobs.get("nothing")


def test_a_stopped_service_resumes_its_job_without_repeating_a_trial(tmp_path: Path) -> None:
    with opened(settings(tmp_path), "the first") as first:
        job = first.tuning.submit(order(33, 34, trials=10), ANONYMOUS)
        while len(first.jobs.trials(job_id=job.id)) < 4:
            sleep(0.02)
    with opened(settings(tmp_path), "the second") as second:
        before = second.jobs.trials(job_id=job.id)
        ended = finish(second, second.jobs.get(job.id))
        after = second.jobs.trials(job_id=job.id)
    assert ended.state in ENDED
    assert ended.state == "succeeded"
    assert after[: len(before)] == before
    tried = [(trial.problem, trial.kernel, str(trial.config)) for trial in after]
    assert len(tried) == len(set(tried))
