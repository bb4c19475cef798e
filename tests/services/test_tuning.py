"""Tune jobs: durable, joined when equal, resumed without repeating a trial, cancelled within one."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from app.errors import Invalid, NotTuned, UnknownDevice, UnknownJob, UnknownKernel, Unsupported
from app.main import opened
from app.services.best.kernel_order import untuned
from app.services.jobs.service import ENDED
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import ListedConfig, TuneSpec, kernels_to_search, normalize
from app.store.records import JobRecord
from app.tuning.budget import Budget
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.services.service_settings import settings
from tests.support.waiting import until


def order(*sizes: int, **rest: Any) -> TuneSpec:
    """An order of small shapes with a small budget, for the kernels that compile fast."""
    problems = tuple(Problem(size, size + 1, size + 2) for size in sizes)
    limits = {
        name: rest.pop(name, usual) for name, usual in (("trials", 4), ("seconds", 200.0), ("gain_percent", None))
    }
    return TuneSpec(problems, **{"kernels": ("tiled",), "budget": Budget(**limits), **rest})


def finish(service: Service, job: JobRecord, seconds: float = 150) -> JobRecord:
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


def test_what_is_told_of_the_best_was_measured_after_it_was_chosen(service: Service, tuned: JobRecord) -> None:
    problem = order(24).problems[0]
    answer = service.best.answer(problem)
    trials = service.jobs.trials(job_id=tuned.id, problem_key=problem.key, state="measured", kernel=answer.kernel)
    of = {trial.round: trial for trial in trials if trial.config == answer.config}
    assert set(of) >= {
        "search",
        "report",
    }  # and the finals, where three rounds of them fit: test_shape_tuner.py has these
    assert answer.timing is not None
    assert answer.timing.median_ms == of["report"].median_ms
    assert answer.baselines is not None
    default = answer.baselines["default"].timing
    assert default is not None
    assert answer.timing.median_ms <= default.median_ms


def test_equal_work_is_one_job_while_it_runs_and_after_it_ended(service: Service, tuned: JobRecord) -> None:
    assert service.tuning.submit(order(24, 40), ANONYMOUS).id == tuned.id
    running = service.tuning.submit(order(25), ANONYMOUS)
    assert service.tuning.submit(order(25), ANONYMOUS).id == running.id
    assert service.tuning.submit(order(25, trials=3), ANONYMOUS).id == running.id
    assert service.tuning.submit(order(25, strategy="random"), ANONYMOUS).id != running.id


def test_finished_job_is_joined_if_its_budget_covered_the_orders(service: Service, tuned: JobRecord) -> None:
    assert service.tuning.submit(order(24, 40, trials=2), ANONYMOUS).id == tuned.id
    more = service.tuning.submit(order(24, 40, trials=8), ANONYMOUS)
    assert more.id != tuned.id
    service.jobs.cancel(more.id, ANONYMOUS)
    assert finish(service, more).state == "cancelled"


@pytest.mark.slow
def test_a_larger_budget_is_given_to_the_running_job_at_once(service: Service) -> None:
    job = service.tuning.submit(order(26, trials=4, seconds=100.0, strategy="random"), ANONYMOUS)
    assert service.tuning.submit(order(26, trials=6, seconds=100.0, strategy="random"), ANONYMOUS).id == job.id
    until(lambda: bool(service.jobs.trials(job_id=job.id)))
    assert service.tuning.submit(order(26, trials=12, seconds=100.0, strategy="random"), ANONYMOUS).id == job.id
    assert service.tuning.submit(order(26, trials=5, seconds=100.0, strategy="random"), ANONYMOUS).id == job.id
    ended = finish(service, job)
    assert ended.state == "succeeded"
    search = service.jobs.trials(job_id=job.id, round="search")
    assert ended.done == ended.total == len(search) == 13
    tried = [(trial.kernel, trial.config) for trial in search]
    assert len(tried) == len(set(tried))


@pytest.mark.slow
def test_a_larger_budget_is_for_the_shapes_that_are_done_too(service: Service) -> None:
    job = service.tuning.submit(order(27, 28, trials=8, seconds=500.0, strategy="random"), ANONYMOUS)
    first = Problem(27, 28, 29).key
    until(lambda: bool(service.jobs.trials(job_id=job.id, problem_key=first, round="report")))
    assert service.tuning.submit(order(27, 28, trials=24, seconds=500.0, strategy="random"), ANONYMOUS).id == job.id
    ended = finish(service, job)
    assert ended.state == "succeeded"
    assert ended.result is not None
    assert len(ended.result["best"]) == 2
    for problem in order(27, 28).problems:
        assert len(service.jobs.trials(job_id=job.id, problem_key=problem.key, round="search")) == 13


def test_more_of_one_limit_and_less_of_another_is_a_job_of_its_own(service: Service) -> None:
    job = service.tuning.submit(order(67, trials=100, seconds=20.0), ANONYMOUS)
    other = service.tuning.submit(order(67, trials=50, seconds=60.0), ANONYMOUS)
    assert other.id != job.id
    for each in (other, job):
        service.jobs.cancel(each.id, ANONYMOUS)
        assert finish(service, each).state == "cancelled"


@pytest.mark.slow
def test_provisional_best_is_taken_back_without_a_winner(service: Service) -> None:
    problem = order(130).problems[0]
    job = service.tuning.submit(order(130, trials=None, seconds=60.0), ANONYMOUS)
    until(lambda: service.best.answer(problem).provisional)
    so_far = service.best.answer(problem)
    assert (so_far.match, so_far.problem) == ("exact", so_far.matched_problem)
    with pytest.raises(NotTuned):
        service.best.answer(problem, exact=True)
    service.jobs.cancel(job.id, ANONYMOUS)
    assert finish(service, job).state == "cancelled"
    assert not service.best.answer(problem).provisional


@pytest.mark.slow
def test_a_job_of_listed_configs_tries_them_and_the_defaults_alone(service: Service) -> None:
    device, problem = service.fleet.unit().device, Problem(35, 36, 37)
    listed = [("tiled", CATALOGUE["tiled"].space.config({"BM": 8, "BN": 16, "BK": 8}))]
    configs = tuple(ListedConfig(*one) for one in listed)
    spec = TuneSpec((problem,), kernels=("tiled",), strategy="exhaustive", configs=configs)
    job = service.tuning.submit(spec, ANONYMOUS)
    assert finish(service, job).state == "succeeded"
    tried = {(trial.kernel, trial.config) for trial in service.jobs.trials(job_id=job.id) if trial.kernel != "vendor"}
    defaults = {(name, CATALOGUE[name].default(problem, device)) for name in ("naive", "tiled")}
    assert tried == {*listed, *defaults}


@pytest.mark.slow
def test_known_strategy_measures_the_best_beside_the_default_alone(
    service: Service,
) -> None:
    device, problem = service.fleet.unit().device, Problem(24, 25, 26)
    before = finish(service, service.tuning.submit(order(24), ANONYMOUS))
    best = service.best.answer(problem, exact=True)
    again = service.tuning.submit(TuneSpec((problem,), strategy="known", budget=Budget(seconds=200.0)), ANONYMOUS)
    assert again.id != before.id
    assert finish(service, again).state == "succeeded"
    trials = service.jobs.trials(job_id=again.id, round="search")
    defaults = {(name, CATALOGUE[name].default(problem, device)) for name in ("naive", "tiled")}
    tried = {(trial.kernel, trial.config) for trial in trials if trial.kernel != "vendor"}
    first = next(untuned(problem, device))
    assert tried == {*defaults, (best.kernel, best.config), (first.name, first.default(problem, device))}
    now = service.best.answer(problem, exact=True)
    assert now.timing is not None
    assert now.baselines is not None
    assert all(now.baselines[name].timing is not None for name in ("naive", "tiled", "default", "vendor"))


def test_listed_configs_of_many_parameters_are_a_space_of_their_own(service: Service) -> None:
    device, problem = service.fleet.unit().device, Problem(300, 200, 100)
    tiled = CATALOGUE["register_tiled"]
    legal = tiled.space.legal(problem, device)
    configs = tuple(ListedConfig(tiled.name, config) for config in legal[:: len(legal) // 12])
    spec = TuneSpec((problem,), kernels=("register_tiled",), strategy="exhaustive", configs=configs)
    kernels = kernels_to_search(problem, device, normalize(spec, service.fleet))
    narrowed = next(kernel for kernel in kernels if kernel.name == tiled.name)
    found = narrowed.space.legal(problem, device)
    assert set(found) == {*legal[:: len(legal) // 12], tiled.default(problem, device)}
    assert len(narrowed.space) == len(list(narrowed.space)) == len(found)
    other = next(config for config in legal if config not in found)
    assert narrowed.space.refusal(other, problem, device) == "is not among those asked for"


@pytest.mark.slow
def test_kernels_for_some_shapes_are_tuned_where_these_are_asked_for(service: Service) -> None:
    shapes = {"batched": Problem(24, 20, 28, 30), "tall": Problem(2100, 33, 20), "skinny": Problem(3, 200, 600)}
    asked = TuneSpec(tuple(shapes.values()), kernels=tuple(shapes), budget=Budget(15, 90.0))
    job = finish(service, service.tuning.submit(asked, ANONYMOUS))
    assert job.state == "succeeded"
    trials = [one for one in service.jobs.trials(job_id=job.id) if one.state == "measured"]
    for name, problem in shapes.items():
        assert name in {one.kernel for one in trials if one.problem == problem}
        assert service.best.answer(problem, exact=True).match == "exact"


def test_order_for_an_unsuited_kernel_is_refused(service: Service) -> None:
    with pytest.raises(Unsupported, match="skinny: it is for a C with a side of at most 32, not for 64 x 64 x 64"):
        service.tuning.submit(TuneSpec((Problem(64, 64, 64),), kernels=("skinny",)), ANONYMOUS)


@pytest.mark.slow
def test_a_job_that_somebody_waits_for_goes_before_those_nobody_waits_for(service: Service) -> None:
    ahead = service.tuning.submit(order(131, trials=None, seconds=60.0), ANONYMOUS)
    until(lambda: service.jobs.get(ahead.id).state == "running")
    unwatched, watched = (service.tuning.submit(order(size, trials=2), ANONYMOUS) for size in (68, 69))
    unsubscribe = service.jobs.subscribe(watched.id, lambda: None)
    service.jobs.cancel(ahead.id, ANONYMOUS)
    until(lambda: service.jobs.get(watched.id).state == "running")
    assert service.jobs.get(unwatched.id).state == "queued"
    unsubscribe()
    for job in (unwatched, watched):
        service.jobs.cancel(job.id, ANONYMOUS)
    assert finish(service, watched).state == "cancelled"


@pytest.mark.slow
def test_running_job_tells_its_eta_and_finals_are_a_phase(service: Service) -> None:
    job = service.tuning.submit(order(29, trials=6), ANONYMOUS)
    told: list[tuple[str | None, float | None]] = []
    changed = threading.Event()
    unsubscribe = service.jobs.subscribe(job.id, changed.set)
    while (now := service.jobs.get(job.id)).state not in ENDED:
        told.append((now.phase, now.eta_seconds))
        changed.wait(10)
        changed.clear()
    unsubscribe()
    phases = list(dict.fromkeys(phase for phase, _ in told))
    assert [phase for phase in phases if phase] == ["preparing", "search", "finals"]
    assert any(seconds is not None and seconds > 0 for _, seconds in told)
    assert (now.phase, now.eta_seconds) == (None, None)
    names = [event.data["phase"] for event in service.jobs.events(job.id) if event.name == "progress"]
    assert names == [None]


@pytest.mark.slow
def test_retune_measures_again(service: Service, tuned: JobRecord) -> None:
    again = service.tuning.submit(order(24, 40, retune=True), ANONYMOUS)
    assert again.id != tuned.id
    until(lambda: bool(service.jobs.trials(job_id=again.id)))
    service.jobs.cancel(again.id, ANONYMOUS)
    assert finish(service, again).state == "cancelled"


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


@pytest.mark.rotating
def test_a_running_job_is_cancelled_within_one_trial(service: Service) -> None:
    job = service.tuning.submit(order(64, trials=None, seconds=60.0), ANONYMOUS)
    first = threading.Event()
    unsubscribe = service.jobs.subscribe(job.id, first.set)
    until(lambda: service.jobs.get(job.id).state != "queued")
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
        with service.matmul.reserve(Problem(32, 32, 32)) as placed:
            placed.a[...], placed.b[...] = 1, 1
            service.matmul.multiply(placed)
            assert placed.c.max() == placed.c.min() == 32
    service.jobs.cancel(job.id, ANONYMOUS)
    assert finish(service, job).state == "cancelled"


@pytest.mark.rotating
def test_a_killed_trial_child_costs_one_trial(service: Service) -> None:
    job = service.tuning.submit(order(30, trials=4), ANONYMOUS)
    until(lambda: service.jobs.trials(job_id=job.id))
    service.fleet.unit().trials.kill()
    ended = finish(service, job)
    assert ended.state == "succeeded"
    assert len(service.jobs.trials(job_id=job.id, state="rejected")) <= 1


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"devices": ("cuda:99",)}, UnknownDevice),
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
        service.tuning.submit(TuneSpec((Problem(8, 8, 8, 1, "bfloat16", "tf32"),)), ANONYMOUS)


def test_an_unknown_job_is_named(service: Service) -> None:
    with pytest.raises(UnknownJob, match="nothing"):
        service.jobs.get("nothing")


@pytest.mark.slow
def test_a_stopped_service_resumes_its_job_without_repeating_a_trial(tmp_path: Path) -> None:
    with opened(settings(tmp_path), "the first") as first:
        job = first.tuning.submit(order(33, trials=10), ANONYMOUS)
        until(lambda: len(first.jobs.trials(job_id=job.id)) >= 4)
    with opened(settings(tmp_path), "the second") as second:
        before = second.jobs.trials(job_id=job.id)
        ended = finish(second, second.jobs.get(job.id))
        after = second.jobs.trials(job_id=job.id)
    assert ended.state in ENDED
    assert ended.state == "succeeded"
    assert after[: len(before)] == before
    tried = [(trial.problem, trial.kernel, str(trial.config), trial.round) for trial in after]
    assert len(tried) == len(set(tried))
