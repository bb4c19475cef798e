"""Faulty configs of a real kernel on a real device: each costs one trial, is not tried again, and is never served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.fleet import Fleet, open_fleet
from app.errors import WrongResult
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.matmul.readiness import DefaultVerification
from app.services.matmul.service import MatmulService
from app.store.records import BestRecord
from app.store.repository import BestRepository
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.services.faulty_kernels import break_tiled, tiled
from tests.support.services.tuning_fixture import House, house

PROBLEM, OTHER = Problem(40, 41, 42), Problem(50, 51, 52)
TRANSPOSED = Problem(40, 41, 42, trans_a=True)
BAD, GOOD = tiled(4, 32, 8), tiled(8, 16, 8)
OFF = "WRITE(c0, THREAD_Y * n + THREAD_X, sum * 1.01f);"
ENDLESS = "if (k > 1) for (volatile GLOBAL REAL *p = c; ; ) p[0] = sum; else c0[0] = sum;"
LIMITS: dict[str, Any] = {"queue": 4, "max_bytes": 2**20, "vendor": False}
NO_NAN = "WRITE(c0, THREAD_Y * n + THREAD_X, sum != sum ? 0 : sum);"


@pytest.fixture(scope="module")
def fleet(binaries: Path) -> Iterator[Fleet]:
    with open_fleet("opencl", binaries, 2**24) as fleet:
        yield fleet


@pytest.fixture
def short_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave two kernels to serve: tiled first, and naive where that may not."""
    two = {name: CATALOGUE[name] for name in ("naive", "tiled")}
    for module in ("best.kernel_order", "matmul.kernel_choice"):
        monkeypatch.setattr(f"app.services.{module}.CATALOGUE", two)


@pytest.fixture
def room(fleet: Fleet, tmp_path: Path) -> Iterator[House]:
    with house(fleet, tmp_path / "tilewise.db") as room:
        yield room


def searched(room: House, problem: Problem) -> dict[str, str]:
    """What became of tiled's configs in the search of a fresh job."""
    job = room.job(problem, [BAD, GOOD])
    room.tune(job)
    rows = room.trials(job, "search", kernel="tiled")
    return {str(row.config): row.stage or "measured" for row in rows}


def stored_best(room: House) -> BestRecord:
    """A promoted best of OTHER whose config is BAD, as a tune would have left it."""
    best = room.tune(room.job(OTHER, [GOOD]))
    odd = replace(best.trial, kernel="tiled", kernel_digest=CATALOGUE["tiled"].digest, config=BAD)
    return replace(best, trial=odd)


def product(room: House, matmul: MatmulService, problem: Problem, kernel: str | None = None) -> tuple[str, float]:
    """The kernel that made a product, and the product's largest error."""
    with matmul.reserve(problem) as placed:
        rng = np.random.default_rng(problem.m)
        placed.a[...], placed.b[...] = rng.standard_normal(placed.a.shape), rng.standard_normal(placed.b.shape)
        made = matmul.multiply(placed, room.unit.device.id, kernel)
        return made.kernel, float(np.abs(placed.c - placed.a.astype(np.float64) @ placed.b).max())


@pytest.mark.slow
def test_a_config_that_answers_wrong_is_never_served_for_any_problem(
    room: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_tiled(monkeypatch, {BAD: OFF})
    best = room.context.best
    best.promoted([stored_best(room)])
    assert best.answer(OTHER).config == BAD
    assert searched(room, PROBLEM)[str(BAD)] == "verify"
    assert str(BAD) not in searched(room, PROBLEM)
    assert best.answer(PROBLEM).config != BAD
    assert best.answer(OTHER).config != BAD
    assert "relative L2" in (room.context.quarantine.holds(room.unit.device, "tiled", BAD) or "")
    assert room.context.quarantine.holds(room.unit.device, "tiled", GOOD) is None
    (fault,) = room.faults()
    assert (fault.kind, fault.scope, fault.config, fault.kernel) == ("wrong", "", BAD, "tiled")


@pytest.mark.slow
def test_quarantine_outlives_the_service_but_not_the_kernels_text(room: House, monkeypatch: pytest.MonkeyPatch) -> None:
    break_tiled(monkeypatch, {BAD: OFF})
    searched(room, PROBLEM)
    again = Quarantine.load(room.database)
    assert again.holds(room.unit.device, "tiled", BAD) is not None
    assert again.holds(replace(room.unit.device, driver="newer"), "tiled", BAD) is None
    break_tiled(monkeypatch, {BAD: OFF, GOOD: OFF})
    assert Quarantine.load(room.database).holds(room.unit.device, "tiled", BAD) is None


@pytest.mark.rotating
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("body", "kind", "stage", "elsewhere"),
    [
        (OFF, "wrong", "verify", [True, True]),
        ("nonsense;", "compile", "compile", [True, False]),
        pytest.param(ENDLESS, "timeout", "launch", [False, False], marks=pytest.mark.slow),
    ],
)
def test_a_config_that_failed_is_not_tried_again_where_it_would_fail_again(
    room: House, monkeypatch: pytest.MonkeyPatch, body: str, kind: str, stage: str, elsewhere: list[bool]
) -> None:
    break_tiled(monkeypatch, {BAD: body})
    first = searched(room, PROBLEM)
    assert first[str(BAD)] == stage
    assert first[str(GOOD)] == "measured"
    assert [(fault.kind, fault.stage, fault.config) for fault in room.faults()] == [(kind, stage, BAD)]
    refused = [room.attempts(room.job(problem)).task().refused["tiled"] for problem in (PROBLEM, OTHER, TRANSPOSED)]
    assert [BAD in configs for configs in refused] == [True, *elsewhere]


@pytest.mark.slow
def test_finalist_wrong_on_hostile_operands_is_quarantined(room: House, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = CATALOGUE["tiled"].default(PROBLEM, room.unit.device)  # which is told, and so proved, however slow it is
    break_tiled(monkeypatch, {bad: NO_NAN})
    job = room.job(PROBLEM, [GOOD])
    best = room.tune(job)
    (row,) = room.trials(job, "final", state="rejected")
    assert (row.kernel, row.config, row.stage) == ("tiled", bad, "verify")
    assert [(fault.kind, fault.config) for fault in room.faults()] == [("wrong", bad)]
    told = (best.trial, best.naive, best.tiled, best.default)
    assert all(one is None or one.config != bad or one.kernel != "tiled" for one in told)
    assert best.default_reason == row.reason
    assert room.context.quarantine.holds(room.unit.device, "tiled", bad) is not None


@pytest.mark.rotating
def test_a_fault_and_its_trial_are_one_transaction(room: House, monkeypatch: pytest.MonkeyPatch) -> None:
    break_tiled(monkeypatch, {BAD: OFF})
    job = room.job(PROBLEM, [BAD, GOOD])
    attempts, seen = room.attempts(job), []
    unsubscribe = room.context.jobs.subscribe(
        job.id, lambda: seen.append((len(room.trials(job, state="rejected")), len(room.faults())))
    )
    attempts.tune()
    unsubscribe()
    assert set(seen) == {(0, 0), (1, 1)}


@pytest.mark.slow
@pytest.mark.usefixtures("short_ladder")
def test_a_product_whose_class_answers_wrong_is_made_by_the_next_answer(
    room: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = CATALOGUE["tiled"].default(PROBLEM, room.unit.device)
    break_tiled(monkeypatch, {default: OFF})
    context = room.context
    matmul = MatmulService(room.fleet, context.best, context.quarantine, MissCounter(room.database), **LIMITS)
    assert context.best.answer(PROBLEM).kernel == "tiled"
    kernel, error = product(room, matmul, PROBLEM)
    assert (kernel, error < 1e-4) == ("naive", True)
    (fault,) = room.faults()
    assert (fault.kind, fault.job_id, fault.config) == ("wrong", None, default)
    for _ in range(2):
        with pytest.raises(WrongResult, match="quarantined"):
            product(room, matmul, PROBLEM, "tiled")
    assert room.faults() == [fault]


@pytest.mark.rotating
@pytest.mark.usefixtures("short_ladder")
def test_wrong_default_does_not_prevent_readiness(room: House, monkeypatch: pytest.MonkeyPatch) -> None:
    default = CATALOGUE["tiled"].default(Problem(256, 256, 256), room.unit.device)
    break_tiled(monkeypatch, {default: OFF})
    context = room.context
    matmul = MatmulService(room.fleet, context.best, context.quarantine, MissCounter(room.database), **LIMITS)
    defaults = DefaultVerification(
        room.fleet, context.quarantine, context.best, matmul.failures, matmul.deadlines, context.forecasts
    )
    defaults.verify(room.unit)
    assert context.quarantine.holds(room.unit.device, "tiled", default) is not None
    defaults.verify(room.unit)
    assert context.best.answer(Problem(256, 256, 256)).kernel == "naive"


@pytest.mark.slow
def test_a_best_whose_config_is_held_is_stored_but_not_answered(room: House) -> None:
    best = room.tune(room.job(PROBLEM, [GOOD]))
    launch = CATALOGUE[best.trial.kernel].launch(best.trial.config, PROBLEM, room.unit.device)
    before = datetime.now(UTC)
    room.context.quarantine.condemn(room.unit.device, launch, "seen to be off")
    room.context.best.changed()
    answer = room.context.best.answer(PROBLEM)
    assert (answer.kernel, answer.config) != (best.trial.kernel, best.trial.config)
    assert room.database.read(lambda session: BestRepository(session).all()) == [best]
    assert room.faults()[0].at >= before
