"""A tune of one shape: saved as it comes, resumed without repeating a trial, ended by finals that promote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import log2
from pathlib import Path

import pytest

from app.devices.fleet import Fleet, open_fleet
from app.errors import LaunchFailed
from app.store.records import BestRecord, JobRecord, MissRecord, TrialRecord
from app.store.repository import BestRepository, MissRepository
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.services.faulty_kernels import break_tiled, tiled
from tests.support.services.tuning_fixture import House, house

PROBLEM, NEAR = Problem(40, 41, 42), Problem(40, 41, 168)
CONFIGS = [tiled(8, 16, 8), tiled(4, 32, 8), tiled(16, 16, 16), tiled(8, 8, 8)]


@pytest.fixture(scope="module")
def fleet(binaries: Path) -> Iterator[Fleet]:
    with open_fleet("opencl", binaries, 2**24) as fleet:
        yield fleet


@pytest.fixture
def room(fleet: Fleet, tmp_path: Path) -> Iterator[House]:
    with house(fleet, tmp_path / "tilewise.db") as room:
        yield room


@dataclass
class Tuned:
    """A tune that has ended: its job, its best, its trials by round, and the phases that its progress told."""

    room: House
    job: JobRecord
    best: BestRecord
    phases: list[str | None]

    def rows(self, round_: str) -> list[TrialRecord]:
        return self.room.trials(self.job, round_)


@pytest.fixture(scope="module")
def tuned(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    with house(fleet, tmp_path_factory.mktemp("tuned") / "tilewise.db") as room:
        job, phases = room.job(PROBLEM, CONFIGS), list[str | None]()
        moment, model = datetime.now(UTC), room.unit.device.model
        misses = [MissRecord(model, one, 3, "nearest", moment, moment) for one in (PROBLEM, NEAR)]
        room.database.write(lambda session: MissRepository(session).add(misses))
        room.context.jobs.subscribe(job.id, lambda: phases.append(room.context.jobs.get(job.id).phase))
        yield Tuned(room, job, room.tune(job), phases)


def tried(rows: list[TrialRecord]) -> list[tuple[str, str]]:
    return [(row.kernel, str(row.config)) for row in rows]


@pytest.mark.slow
def test_a_tune_saves_three_rounds_and_promotes_what_the_report_measured(tuned: Tuned) -> None:
    search, final, report = (tuned.rows(name) for name in ("search", "final", "report"))
    assert {*tried(search)} >= {("tiled", str(config)) for config in CONFIGS} | {("vendor", "")}
    assert tuned.best.trial == report[0]
    assert tried(report)[0] in tried(final)
    assert {*tried(final)} <= {*tried(search)}
    for row in (*final, *report):
        assert row.samples == len(row.seconds) > 1
        assert row.policy is not None
    assert tuned.room.database.read(lambda session: BestRepository(session).all()) == [tuned.best]
    answer = tuned.room.context.best.answer(PROBLEM)
    assert (answer.match, answer.config, answer.provisional) == ("exact", tuned.best.trial.config, False)


@pytest.mark.slow
def test_best_is_measured_beside_the_rest_and_beats_the_default(tuned: Tuned) -> None:
    best = tuned.best
    assert best.default is not None
    assert best.default.config == CATALOGUE["tiled"].default(PROBLEM, tuned.room.unit.device)
    kernels = [beside and beside.kernel for beside in (best.naive, best.tiled, best.vendor, best.default)]
    assert kernels == ["naive", "tiled", "vendor", "tiled"]
    told = [row for row in (best.naive, best.tiled, best.vendor, best.default) if row is not None]
    assert {row.round for row in told} == {best.trial.round} == {"report"}
    assert {row.id for row in told} <= {row.id for row in tuned.rows("report")}
    searched = {row.seconds for row in tuned.rows("search")}
    assert not searched & {row.seconds for row in (best.trial, *told)}
    ours = [row.median_ms or 0 for row in told if row.kernel != "vendor"]
    assert (best.trial.median_ms or 9e9) <= min(ours)


def test_the_job_counts_its_search_and_says_when_the_finals_begin(tuned: Tuned) -> None:
    ended, search = tuned.room.context.jobs.get(tuned.job.id), tuned.rows("search")
    assert ended.done == len(search)
    assert ended.best_ms == min(row.median_ms or 9e9 for row in search if row.kernel != "vendor")
    assert tuned.phases == ["preparing", "search", *["search"] * len(search), "finals", "finals"]


def test_a_tuned_shape_is_no_longer_wanted(tuned: Tuned) -> None:
    misses = tuned.room.database.read(lambda session: MissRepository(session).most_frequent())
    assert [miss.problem for miss in misses] == [NEAR]


def test_what_other_shapes_took_is_known_before_the_search(tuned: Tuned) -> None:
    room = tuned.room
    (known,) = room.attempts(room.job(NEAR)).task().known["tiled"]
    assert known.distance == log2(4)
    assert {*known.seconds} >= {*CONFIGS}
    assert all(0 < seconds < 1 for seconds in known.seconds.values())
    transposed = room.job(replace(PROBLEM, trans_a=True))
    assert room.attempts(transposed).task().known == {"naive": [], "tiled": []}


@pytest.mark.slow
@pytest.mark.parametrize("after", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_tune_that_was_interrupted_goes_on_without_repeating_a_trial(room: House, after: int) -> None:
    job = room.job(PROBLEM, CONFIGS)
    room.stops = lambda: len(room.trials(job)) >= after
    assert room.attempts(job).tune() is None
    before = room.trials(job)
    assert len(before) == after
    room.stops = lambda: False
    room.tune(job)
    search = room.trials(job, "search")
    assert search[:after] == before
    assert len({*tried(search)}) == len(search) == room.context.jobs.get(job.id).done


KILLED = """
import sys
from pathlib import Path
from tests.support.services.faulty_kernels import tiled
from tests.support.services.tuning_fixture import house
from app.devices.fleet import open_fleet
from kernels.problem import Problem
file, cache = map(Path, sys.argv[1:])
with open_fleet("opencl", cache, 2**24) as fleet, house(fleet, file) as room:
    job = room.job(Problem(40, 41, 42), [tiled(8, 16, 8), tiled(4, 32, 8), tiled(16, 16, 16), tiled(8, 8, 8)])
    room.context.jobs.subscribe(job.id, lambda: print(job.id, flush=True))
    room.attempts(job).tune()
"""


@pytest.mark.slow
def test_a_tune_that_was_killed_goes_on_without_repeating_a_trial(room: House, binaries: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed.db"), str(binaries)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as child:
        assert child.stdout is not None
        (job_id,) = {child.stdout.readline().strip() for _ in range(6)}
        child.kill()
    with house(room.fleet, tmp_path / "killed.db") as again:
        job = again.context.jobs.get(job_id)
        before = again.trials(job)
        assert len(before) >= 4
        again.tune(job)
        search = again.trials(job, "search")
    assert search[: len(before)] == before
    assert len({*tried(search)}) == len(search) > len(before)


@pytest.mark.slow
def test_finals_that_are_interrupted_leave_nothing_and_are_done_again(room: House) -> None:
    job = room.job(PROBLEM, CONFIGS)
    room.stops = lambda: room.context.jobs.get(job.id).phase == "finals"
    assert room.attempts(job).tune() is None
    search = room.trials(job)
    assert {row.round for row in search} == {"search"}
    assert room.database.read(lambda session: BestRepository(session).all()) == []
    room.stops = lambda: False
    room.tune(job)
    assert room.trials(job, "search") == search


@pytest.mark.slow
def test_a_job_that_was_given_more_does_more_and_its_finals_anew(room: House) -> None:
    job = room.job(PROBLEM, CONFIGS, trials=4)
    first = room.tune(job)
    more = replace(job, request={**job.request, "trials": 8})
    second = room.tune(more)
    assert len(room.trials(job, "search")) > 5
    assert room.database.read(lambda session: BestRepository(session).all()) == [second]
    assert first.trial.id not in [row.id for row in room.trials(job)]


@pytest.mark.rotating
def test_provisional_best_is_served_and_withdrawn_on_interruption(room: House) -> None:
    job, best = room.job(PROBLEM, CONFIGS), room.context.best
    seen = []

    def stops() -> bool:
        seen.append(best.answer(PROBLEM))
        return len(room.trials(job)) >= 5

    room.stops = stops
    assert room.attempts(job).tune() is None
    served = [answer.provisional for answer in seen]
    assert served == sorted(served)
    assert {*served} == {False, True}
    last = seen[-1]
    fastest = min((row for row in room.trials(job) if row.kernel != "vendor"), key=lambda row: row.median_ms or 9e9)
    assert (last.kernel, last.config, last.match) == (fastest.kernel, fastest.config, "exact")
    assert best.answer(PROBLEM).match == "default"


@pytest.mark.rotating
def test_where_nothing_could_be_measured_the_reasons_are_told(room: House, monkeypatch: pytest.MonkeyPatch) -> None:
    default = CATALOGUE["tiled"].default(PROBLEM, room.unit.device)
    break_tiled(monkeypatch, {default: "", CONFIGS[3]: "nonsense;"})
    monkeypatch.setattr("app.services.tuning.request._BASELINES", ("tiled",))
    job = room.job(PROBLEM, CONFIGS[3:])
    with pytest.raises(LaunchFailed, match=r"(?s)could be measured: .*nonsense.*; left 1640 elements unwritten"):
        room.attempts(job).tune()
    assert room.database.read(lambda session: BestRepository(session).all()) == []
