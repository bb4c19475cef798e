"""An answer is always given and always labelled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.errors import NotTuned, UnknownDevice, Unsupported
from app.main import Service
from app.services.best import BestConfigs, distance
from app.store.records import BestRecord, TrialRecord
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem


def measured(device: Device, problem: Problem, median_ms: float = 1.0) -> TrialRecord:
    tiled = CATALOGUE["tiled"]
    return TrialRecord(
        id=1,
        job_id="a job",
        device_model=device.model,
        device_uuid=device.uuid,
        environment=device.environment,
        problem=problem,
        kernel="tiled",
        kernel_digest=tiled.digest,
        config=tiled.space.config({"BM": 8, "BN": 16, "BK": 8}),
        state="measured",
        stage=None,
        reason=None,
        median_ms=median_ms,
        ci95_lo_ms=0.9,
        ci95_hi_ms=1.1,
        samples=20,
        limited=False,
        relative_l2=1e-7,
        max_scaled=1e-8,
        registers=None,
        created_at=datetime.now(UTC),
    )


def best(trial: TrialRecord) -> BestRecord:
    return BestRecord(
        device_model=trial.device_model,
        problem=trial.problem,
        trial=trial,
        naive=None,
        tiled=trial,
        vendor=None,
        vendor_reason="not installed",
        tuned_at=trial.created_at,
    )


PROBLEM = Problem(256, 256, 256)


@pytest.fixture
def device(service: Service) -> Device:
    return service.fleet.unit().device


def test_a_tuned_problem_is_answered_exactly_with_everything_that_was_measured(
    service: Service, device: Device
) -> None:
    answer = BestConfigs(service.fleet, [best(measured(device, PROBLEM))]).answer(PROBLEM)
    assert (answer.match, answer.kernel, dict(answer.config)) == ("exact", "tiled", {"BM": 8, "BN": 16, "BK": 8})
    assert answer.gflops == pytest.approx(PROBLEM.flops / 1e6)
    assert answer.accuracy is not None
    assert answer.baselines is not None
    assert answer.baselines["vendor"].reason == "not installed"


@pytest.mark.parametrize("digest", [True, False])
def test_a_changed_kernel_text_or_environment_makes_the_answer_stale(
    service: Service, device: Device, digest: bool
) -> None:
    trial = measured(device, PROBLEM)
    trial = replace(trial, kernel_digest="another") if digest else replace(trial, environment="another")
    bests = BestConfigs(service.fleet, [best(trial)])
    assert bests.answer(PROBLEM).match == "stale"
    with pytest.raises(NotTuned):
        bests.answer(PROBLEM, exact=True)


def test_an_unknown_shape_is_answered_by_the_nearest_of_its_family(service: Service, device: Device) -> None:
    near, far = Problem(300, 300, 300), Problem(8, 4096, 8)
    records = [best(measured(device, near, 2.0)), best(measured(device, far, 3.0))]
    answer = BestConfigs(service.fleet, records).answer(PROBLEM)
    assert (answer.match, answer.matched_problem) == ("nearest", near)
    assert answer.launch.problem == PROBLEM


def test_another_family_never_answers(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet, [best(measured(device, PROBLEM))])
    for other in (replace(PROBLEM, dtype="float64"), replace(PROBLEM, trans_a=True)):
        answer = bests.answer(other)
        assert (answer.match, answer.timing, answer.baselines) == ("default", None, None)


def test_a_class_that_no_kernel_covers_is_refused_by_its_name(service: Service) -> None:
    with pytest.raises(Unsupported, match="float16"):
        service.best.answer(replace(PROBLEM, dtype="float16"))


def test_an_unknown_device_is_refused(service: Service) -> None:
    with pytest.raises(UnknownDevice):
        service.best.answer(PROBLEM, "cuda:99")


def test_promotion_changes_the_answer_and_the_generation(service: Service, device: Device) -> None:
    bests = BestConfigs(service.fleet)
    assert bests.answer(PROBLEM).match == "default"
    before = bests.generation
    bests.promoted([best(measured(device, PROBLEM))])
    assert bests.answer(PROBLEM).match == "exact"
    assert bests.generation > before


def test_distance_is_symmetric_and_counts_doublings() -> None:
    assert distance(PROBLEM, Problem(512, 256, 256)) == distance(Problem(512, 256, 256), PROBLEM) == 1.0
