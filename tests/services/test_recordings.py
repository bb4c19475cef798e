"""A job's trials as recordings: one for each kernel's space, with all that was measured of each config."""

from __future__ import annotations

import pytest

from app.services.jobs.export import recordings
from app.services.service import Service
from app.tuning.outcome import Rejected
from app.tuning.replay import lines, read
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem
from tests.support.services.trial_rows import PROBLEM, rejected, trial

SMALL, LARGE = ({"BM": size, "BN": size, "BK": 8} for size in (8, 16))


@pytest.fixture
def device(service: Service) -> Device:
    return service.fleet.unit().device


def test_a_configs_rounds_are_put_together_and_a_failure_keeps_its_reason(device: Device) -> None:
    space = CATALOGUE["tiled"].space
    small, large = space.config(SMALL), space.config(LARGE)
    rows = [
        trial(device, config=small, seconds=(1e-3,)),
        rejected(device, config=large),
        trial(device, config=small, seconds=(2e-3, 3e-3), round="final"),
    ]
    (recording,) = recordings(rows, [device])
    assert recording.outcomes[small] == (1e-3, 2e-3, 3e-3)
    assert recording.outcomes[large] == Rejected("tiled", large, "launch", "too many threads")
    assert (recording.device, recording.kernel, recording.problem) == (device, "tiled", PROBLEM)


def test_a_finalist_that_was_wrong_in_the_end_is_a_failure(device: Device) -> None:
    rows = [trial(device), rejected(device, round="final", stage="verify", reason="NaN is lost")]
    (recording,) = recordings(rows, [device])
    (outcome,) = recording.outcomes.values()
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "NaN is lost"


def test_each_problem_kernel_and_policy_has_a_recording(device: Device) -> None:
    rows = [
        trial(device),
        trial(device, problem=Problem(8, 8, 8)),
        trial(device, kernel_digest="another"),
        trial(device, policy="graph"),
        trial(device, kernel="vendor"),
        trial(device, device_model="another model"),
    ]
    assert len(list(recordings(rows, [device]))) == 4


def test_what_was_measured_before_samples_were_kept_counts_as_one(device: Device) -> None:
    (recording,) = recordings([trial(device, seconds=(), median_ms=2.5)], [device])
    assert list(recording.outcomes.values()) == [(2.5e-3,)]


def test_the_text_of_recordings_says_the_same_again(device: Device) -> None:
    made = list(recordings([trial(device), trial(device, problem=Problem(8, 8, 8))], [device]))
    again = read("".join(lines(made)).splitlines())
    assert [list(one.outcomes) for one in again] == [list(one.outcomes) for one in made]
    for one, other in zip(again, made, strict=True):
        assert list(one.outcomes.values()) == [pytest.approx(samples) for samples in other.outcomes.values()]
