"""A job's trials as recordings: one for each kernel's space, with all that was measured of each config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from app.services.jobs.export import recordings
from app.services.jobs.service import JobService, new_job
from app.services.service import Service
from app.store.database import Database, migrate, open_database
from app.store.records import TrialRecord
from app.store.repository import DeviceRepository, JobRepository, TrialRepository
from app.tuning.outcome import Rejected
from app.tuning.replay import lines, read
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config
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


@pytest.mark.slow
def test_recordings_are_read_a_space_at_a_time(tmp_path: Path, device: Device) -> None:
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    with open_database(url) as database:
        rows = stored(database, device)
        jobs = ReadAtOnce(database)
        pieces = jobs.recordings()
        assert jobs.read == []
        assert "".join(pieces) == "".join(lines(recordings(rows, [device])))
        assert jobs.read == [700, 700, 700, 700], "no more than the trials of one space"
        assert "".join(jobs.recordings(kernel="vendor")) == ""


def stored(database: Database, device: Device) -> list[TrialRecord]:
    """Trials of four problems, of the vendor's library too, in a job."""
    config = CATALOGUE["tiled"].space.config(SMALL)
    rows = [
        trial(device, Problem(size, 8, 8), id=None, config=Config.of({**config, "BM": number}), kernel=kernel)
        for size in (8, 16, 24, 32)
        for number in range(700)
        for kernel in ("tiled", *(("vendor",) if number == 0 else ()))
    ]

    def add(session: Session) -> None:
        DeviceRepository(session).save(device)
        JobRepository(session).add(replace(new_job("tune", {}), id=rows[0].job_id))
        for row in rows:
            TrialRepository(session).add(row)

    database.write(add)
    return rows


class ReadAtOnce(JobService):
    """Notes how many trials were read for each space."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.read: list[int] = []

    def _all_trials(self, filters: Mapping[str, object]) -> Sequence[TrialRecord]:
        found = super()._all_trials(filters)
        self.read.append(len(found))
        return found
