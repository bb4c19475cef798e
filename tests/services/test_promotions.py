"""What a promotion reads and learns: the same as reading everything, at a cost that the store's size does not set."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from app.services.best import transfer_records
from app.services.best.lookup import BestConfigs
from app.services.best.transfer_records import TunedFamily, WinnerTimes
from app.services.jobs.service import new_job
from app.services.service import Service
from app.services.sharing.best import SharedBestConfigs
from app.store.records import BestRecord, CrossRecord
from app.store.repository import BestRepository, JobRepository, TrialRepository
from app.tuning.transfer import Transfer, TransferSettings
from kernels import CATALOGUE
from kernels.device import Device
from kernels.problem import Problem
from tests.services.test_best import best, measured
from tests.support.kernels.random_samples import seed
from tests.support.waiting import until

TILES = list(CATALOGUE["tiled"].space)[:12]


def shapes(dice: random.Random, count: int) -> list[Problem]:
    """Drawn shapes, each another."""
    drawn = dict[Problem, None]()
    while len(drawn) < count:
        m, n, k = (int(2 ** dice.uniform(3, 12)) for _ in range(3))
        drawn[Problem(m, n, k, trans_a=True)] = None
    return list(drawn)


def promoted(
    service: Service, dice: random.Random, tuned: Sequence[Problem], environment: str = ""
) -> list[BestRecord]:
    """Bests that are stored, with a trial of eight configs on each problem."""
    job, device = new_job("tune", {}, "promotions"), service.fleet.unit().device
    service.database.write(lambda session: JobRepository(session).add(job))

    def store(session: Session) -> list[BestRecord]:
        kept = []
        for problem in tuned:
            trial = replace(measured(device, problem), id=None, job_id=job.id)
            trial = replace(trial, environment=environment or trial.environment)
            saved = []
            for config in dice.sample(TILES, 8):
                one = replace(trial, config=config, median_ms=dice.uniform(1, 3))
                saved.append(replace(one, id=TrialRepository(session).add(one)))
            winner = min(saved, key=lambda one: one.median_ms or 0.0)
            kept.append(replace(best(winner), tiled=None, default=saved[0]))
        BestRepository(session).promote(*kept)
        return kept

    return service.database.write(store)


@pytest.fixture
def dice() -> random.Random:
    print(f"TEST_SEED={seed()}")
    return random.Random(seed())  # noqa: S311 - shapes, no secrets


@pytest.fixture
def device(service: Service) -> Device:
    return service.fleet.unit().device


@pytest.mark.rotating
def test_bests_that_come_one_by_one_tell_what_all_at_once_do(
    service: Service, device: Device, dice: random.Random
) -> None:
    tuned, asked = shapes(dice, 24), shapes(dice, 30)
    bests = BestConfigs.load(service.fleet, service.database)
    for record in promoted(service, dice, tuned):
        bests.promoted([record])
    bests.promoted(promoted(service, dice, tuned[:3]))  # tuned again, with other winners
    bests.promoted(promoted(service, dice, tuned[3:5], "another driver"))
    service.database.write(lambda session: BestRepository(session).delete(device.model, tuned[6]))
    bests.deleted(device.model, tuned[6])
    loaded = BestConfigs.load(service.fleet, service.database)
    for problem in [*tuned, *asked]:
        assert bests.answer(problem) == loaded.answer(problem), problem


def test_a_promotion_reads_what_concerns_it_alone(service: Service, dice: random.Random) -> None:
    records = promoted(service, dice, shapes(dice, 20))
    read = list[list[CrossRecord]]()

    def crossed(around: Collection[BestRecord] | None, first: Collection[BestRecord]) -> list[CrossRecord]:
        read.append(service.database.read(lambda session: BestRepository(session).crossed(around, first)))
        return read[-1]

    (won, _), *_ = Counter(one.trial.config for one in records).most_common(1)  # of 20 wins of 12 configs
    last, again, *_ = [one for one in records if one.trial.config == won]
    others = [one for one in records if one.trial.config != won]
    bests = BestConfigs(service.fleet, others, crossed=crossed)
    bests.promoted([last])
    assert len(read[1]) < len(read[0])
    assert all(one.problem == last.problem or one.config == last.trial.config for one in read[1])
    assert {one.problem for one in read[1]} > {last.problem}
    bests.promoted([again])
    assert {one.problem for one in read[2]} == {again.problem}, "its config has won before"


@pytest.mark.rotating
def test_who_shares_a_store_answers_what_is_promoted_before_it_has_learned_from_it(
    service: Service, dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, (asked,) = shapes(dice, 30), shapes(dice, 1)  # too few for settings that hold
    bests = SharedBestConfigs.load(service.fleet, service.database)
    learned, may_learn = list[int](), threading.Event()
    learn = WinnerTimes.promoted

    def slowly(self: WinnerTimes, records: Sequence[BestRecord]) -> None:
        assert may_learn.wait(30)
        learn(self, records)
        learned.append(len(records))

    monkeypatch.setattr(WinnerTimes, "promoted", slowly)
    with bests.learning():
        for record in promoted(service, dice, tuned):
            bests.promoted([record])
        assert [bests.answer(problem).match for problem in tuned] == ["exact"] * len(tuned)
        may_learn.set()
        until(lambda: sum(learned) == len(tuned))
    assert len(learned) <= 2, "what has come meanwhile is learned from at once"
    assert bests.answer(asked) == BestConfigs.load(service.fleet, service.database).answer(asked)


def test_many_tuned_shapes_are_not_learned_from_anew_at_each_promotion(
    service: Service, device: Device, dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = [0]

    class Counted(Transfer):
        def _learn(self) -> TransferSettings:
            learned[0] += 1
            return super()._learn()

    monkeypatch.setattr(transfer_records, "Transfer", Counted)
    records = [best(measured(device, problem, tile=dice.choice(TILES))) for problem in shapes(dice, 160)]
    bests = BestConfigs(service.fleet, records[:80])
    before = learned[0]
    for record in records[80:]:
        bests.promoted([record])
    assert 1 <= learned[0] - before <= 7  # each time an eighth more: 91, 103, 116, 131, 148
    assert bests.answer(records[-1].problem).match == "exact"


def test_a_best_that_is_deleted_while_it_is_learned_from_is_told_of_no_more(
    service: Service, dice: random.Random
) -> None:
    (tuned,) = shapes(dice, 1)
    near = replace(tuned, m=tuned.m + 1)
    (record,) = promoted(service, dice, [tuned])

    class Slow(BestConfigs):
        def _families(self, changed: set[tuple[str, str]]) -> dict[tuple[str, str], TunedFamily]:
            found = super()._families(changed)
            if deleting.ident is None:
                deleting.start()
                until(lambda: self.record(record.device_model, tuned) is None)
            return found

    bests = Slow(service.fleet)
    deleting = threading.Thread(target=bests.deleted, args=(record.device_model, tuned))
    bests.promoted([record])
    deleting.join(30)
    answer = bests.answer(near)
    assert (answer.match, answer.expected_loss) == ("default", None), "nothing is known of the family"


def test_what_was_missed_is_taken_and_nothing_else_is_read(
    service: Service, device: Device, dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = shapes(dice, 12)
    promoted(service, dice, tuned[:10])
    bests, read, read_all = (
        SharedBestConfigs.load(service.fleet, service.database),
        list[set[str]](),
        BestRepository.all,
    )

    def counted(repository: BestRepository, keys: Collection[str] | None = None) -> list[BestRecord]:
        read.append(set(keys or ()))
        return read_all(repository, keys)

    monkeypatch.setattr(BestRepository, "all", counted)
    bests.reload()
    assert read == [], "nothing has changed"
    changed = tuned[9:]  # one tuned again, two for the first time
    promoted(service, dice, changed)
    service.database.write(lambda session: BestRepository(session).delete(device.model, tuned[0]))
    bests.reload()
    assert read == [{problem.key for problem in (tuned[0], *changed)}]
    monkeypatch.undo()
    loaded = BestConfigs.load(service.fleet, service.database)
    assert {record.problem: record for record in bests.all()} == {record.problem: record for record in loaded.all()}
