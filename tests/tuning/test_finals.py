"""Finals on machines of known truth: who is chosen, what is told of it, and what becomes of wrong and deadly ones."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from secrets import randbits
from typing import Any

import numpy as np
import pytest

from app.errors import ChildDied, ChildLost, DeviceError
from app.tuning.finals import finals
from app.tuning.outcome import FinalReport, Measured, Outcome, Rejected
from app.tuning.runner import Contender, InterleavedSamples, OutOfTime
from kernels.launch import Launch
from kernels.space import Config
from tests.support.tuning.synthetic_noise import PROBLEM, Machine, Synthetic, launch, launches

LIMIT = 1.0  # seconds


def runner(truth: dict[Contender, float], scale: float = 0.01, **machine: Any) -> Synthetic:
    seed = randbits(32)
    print(f"seed {seed}")
    return Synthetic(Machine(np.random.default_rng(seed), scale, **machine), truth)


def ladder(count: int, step: float = 0.01, best: float = 1e-4) -> dict[Contender, float]:
    """Configs that each take a little longer than the one before."""
    return {launch(number): best * (1 + step * number) for number in range(count)}


def run(
    on: Synthetic, default: Launch | None = None, outcomes: Sequence[Outcome] | None = None, limit: float = LIMIT
) -> FinalReport:
    """Search in random order, then the finals."""
    contenders = list(on.truth)
    random.Random(5).shuffle(contenders)  # noqa: S311  no secret
    found = finals(outcomes or on.search(contenders), default, launches, on, PROBLEM, limit, 3, on.clock)
    assert found is not None
    return found


def test_fastest_of_close_ones_is_told_from_fresh_samples() -> None:
    on = runner(ladder(40, 0.02))
    final = run(on, launch(6))
    assert final.best.config["number"] == 0
    assert final.finalists[0].config == final.best.config
    assert final.finalists[0].seconds != final.best.seconds
    assert final.best.timing.median_ms == pytest.approx(0.1, rel=0.005)
    assert final.best.timing.samples == len(final.best.seconds) == 200
    assert final.default is not None
    assert final.default.timing.median_ms == pytest.approx(0.112, rel=0.005)


@pytest.mark.parametrize(("count", "least", "most"), [(3, 3, 3), (8, 8, 8), (40, 8, 24)])
def test_eight_finalists_at_least_or_all(count: int, least: int, most: int) -> None:
    final = run(runner(ladder(count, 0.2)))
    assert least <= len(final.finalists) <= most
    assert all(one.timing.samples >= 3 for one in final.finalists)


def test_whatever_could_still_be_the_best_is_a_finalist() -> None:
    final = run(runner(ladder(20, 0.0005), 0.02))
    assert len(final.finalists) == 20


def test_no_more_than_24_are_finalists_and_only_the_choice_is_proved() -> None:
    on = runner(ladder(60, 0.0001), 0.02)
    assert len(run(on).finalists) == 24
    assert on.proofs <= 2  # of the fastest in the search, and of the choice


@pytest.mark.parametrize("seed", range(3))
def test_only_close_finalists_are_sampled_to_the_end(seed: int) -> None:
    truth: dict[Contender, float] = {launch(number): 1e-4 if number < 4 else 1.3e-4 for number in range(12)}
    final = run(Synthetic(Machine(np.random.default_rng(seed), 0.03), truth))
    samples = {one.config["number"]: one.timing.samples for one in final.finalists}
    assert max(samples[number] for number in range(4)) > max(samples[number] for number in samples if number > 3)
    assert [one.config["number"] < 4 for one in final.finalists[:5]] == [True] * 4 + [False]


def test_wrong_finalists_are_named_and_replaced_by_the_next() -> None:
    on = runner(ladder(20, 0.2), 0.002)
    on.wrong = {launch(0), launch(1)}
    final = run(on)
    assert final.best.config["number"] == 2
    assert {one.config["number"] for one in final.wrong} == {0, 1}
    assert len(final.finalists) == 6


def test_where_all_are_wrong_or_nothing_was_measured_there_is_no_final() -> None:
    on = runner(ladder(12))
    on.wrong = {launch(number) for number in range(12)}
    assert finals(on.search(on.truth), None, launches, on, PROBLEM, LIMIT, 1) is None
    rejected = Rejected("tiled", Config(()), "compile", "no")
    assert finals([rejected], None, launches, on, PROBLEM, LIMIT, 1) is None


@pytest.mark.parametrize("where", ["a finalist", "the vendor", "the default"])
def test_one_that_takes_the_process_down_is_found_and_dropped(where: str) -> None:
    on = runner({**ladder(12), PROBLEM: 9e-5}, 0.002)
    deadly: dict[str, Contender] = {"a finalist": launch(0), "the vendor": PROBLEM, "the default": launch(11)}
    outcomes = on.search(on.truth)
    on.deadly = {deadly[where]}
    final = run(on, launch(11), outcomes)
    assert final.best.config["number"] == (1 if where == "a finalist" else 0)
    if where == "the vendor":
        assert final.vendor is None
        assert final.reasons["vendor"] == "the child died"
        assert not final.wrong
    else:
        assert [(one.stage, one.reason) for one in final.wrong] == [("measure", "the child died")]
    assert (final.default is None) == (where == "the default") == ("default" in final.reasons)


class Dying(Synthetic):
    """A runner on which everything runs alone and nothing together."""

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Die of company."""
        if len(contenders) > 1:
            raise ChildDied("the child died")
        return super().sample(contenders, rounds)


class Lost(Synthetic):
    """A runner whose device is lost after so many calls."""

    calls = 1

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Refuse what comes then."""
        self.calls -= 1
        if self.calls < 0:
            raise ChildLost("its node is lost")
        return super().sample(contenders, rounds)


class Ending(Synthetic):
    """A runner whose budget ends after so many calls."""

    calls = 3

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Raise OutOfTime at its end."""
        self.calls -= 1
        if self.calls < 0:
            raise OutOfTime
        return super().sample(contenders, rounds)


class Hurried(Synthetic):
    """A runner whose budget ends once one config was proved."""

    provable = 1

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """Raise OutOfTime after the first."""
        self.provable -= 1
        if self.provable < 0:
            raise OutOfTime
        return super().stress_verify(launch)


def test_a_budget_that_ends_within_the_report_leaves_the_figures_so_far() -> None:
    on = Ending(Machine(np.random.default_rng(1), 0.002), {**ladder(1), launch(0, "tiled"): 2e-4, PROBLEM: 9e-5})
    on.calls = 4  # two of the choice
    final = run(on, launch(0))
    assert final.vendor is not None
    assert final.default == final.best
    assert 5 <= final.best.timing.samples < 200
    on.calls = 1
    with pytest.raises(OutOfTime):
        run(on, launch(0))


@pytest.mark.parametrize("calls", [0, 1])
def test_no_finalist_is_to_blame_for_a_device_that_is_lost(calls: int) -> None:
    on = Lost(Machine(np.random.default_rng(1)), ladder(3))
    outcomes = on.search(on.truth)
    on.calls = calls
    with pytest.raises(ChildLost):
        finals(outcomes, None, launches, on, PROBLEM, LIMIT, 1)
    assert on.calls == -1, "it was not asked again"


def test_a_failure_that_nobody_is_to_blame_for_is_raised() -> None:
    on = Dying(Machine(np.random.default_rng(1)), ladder(3))
    outcomes = on.search(on.truth)
    with pytest.raises(DeviceError):
        finals(outcomes, None, launches, on, PROBLEM, LIMIT, 1)


def test_a_default_that_is_faster_than_the_winner_is_promoted() -> None:
    on = runner({**ladder(30, 0.01), launch(99, "tiled"): 0.95e-4}, 0.002)
    outcomes = on.search(on.truth)
    on.truth[launch(99, "tiled")] = 1.5e-4
    unlucky = on.search([launch(99, "tiled")])
    on.truth[launch(99, "tiled")] = 0.95e-4
    final = run(on, launch(99, "tiled"), [*outcomes[:-1], *unlucky])
    assert final.best.kernel == "tiled"
    assert final.default == final.best == final.baselines["tiled"]
    assert final.best.timing.median_ms == pytest.approx(0.095, rel=0.003)
    assert {*on.sampled[-1]} == {launch(0), launch(99, "tiled")}


@pytest.mark.parametrize("kernel", ["naive", "tiled"])
def test_faster_baseline_is_promoted_as_one_entry(kernel: str) -> None:
    on = runner({**ladder(30, 0.01), launch(99, kernel): 0.9e-4}, 0.002)
    outcomes = on.search(on.truth)
    on.truth[launch(99, kernel)] = 1.5e-4
    unlucky = on.search([launch(99, kernel)])
    on.truth[launch(99, kernel)] = 0.9e-4
    final = run(on, launch(5), [*outcomes[:-1], *unlucky])
    assert final.best == final.baselines[kernel]
    assert (final.best.kernel, final.best.config["number"]) == (kernel, 99)
    assert kernel not in final.reasons


NOISES: dict[str, dict[str, Any]] = {
    "heavy": {"scale": 0.5, "tail": 3},
    "wandering": {"scale": 0.3, "phi": 0.99, "common": 0.9},
    "bursts": {"scale": 0.05, "slow": lambda now: 4.0 if int(50 * now) % 3 == 0 else 1.0},
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("limit", [1e-3, 0.02, 0.2])
def test_no_own_figure_is_faster_than_the_best_under_noise(kind: str, limit: float) -> None:
    for _ in range(25):
        truth = {**ladder(9, 0.05), PROBLEM: 9e-5, launch(0, "tiled"): 1.02e-4, launch(0, "naive"): 1.5e-4}
        on = runner(truth, **NOISES[kind])
        final = run(on, launch(4), limit=limit)
        beside = [one for one in (final.default, *final.baselines.values()) if one is not None]
        assert all(final.best.timing.median_ms <= one.timing.median_ms for one in beside)
        told = [one for one in (final.best, final.vendor, *beside) if one is not None]
        assert all(one.timing.limited for one in told if one.timing.samples < 5)
        named = {"default": final.default, "vendor": final.vendor, **final.baselines}
        for name in ("default", "vendor", "naive", "tiled"):
            assert (named.get(name) is None) == (name in final.reasons)


def test_a_vendor_that_is_faster_stays_beside_the_best() -> None:
    final = run(runner({**ladder(9), PROBLEM: 2e-5}, 0.002), launch(4))
    assert final.vendor is not None
    assert final.vendor.timing.median_ms < final.best.timing.median_ms
    assert final.best.kernel != "vendor"


def test_unaffordable_figure_has_a_reason_in_its_place() -> None:
    on = runner({**ladder(9), launch(0, "tiled"): 2e-4, launch(0, "naive"): 3.2, PROBLEM: 0.5}, 0.002)
    final = run(on, launch(4))
    assert {*final.baselines} == {"tiled"}
    assert final.vendor is None
    one = r"one launch, with the checks beside it, takes about 3\.\d+ s, which the budget does not afford 5 times"
    assert re.match(one, final.reasons["naive"])
    assert {*final.reasons} == {"naive", "vendor"}


def test_a_slow_baseline_is_sampled_less_often_in_the_same_round() -> None:
    on = runner({**ladder(9), launch(0, "tiled"): 2e-4, launch(0, "naive"): 0.02}, 0.002)
    final = run(on)
    assert 5 <= final.baselines["naive"].timing.samples < final.best.timing.samples / 2
    assert final.baselines["tiled"].timing.samples == final.best.timing.samples
    rounds = [launch(0, "naive") in sample_interleaved for sample_interleaved in on.sampled]
    assert rounds[-20:] == [True, False] * 10


@pytest.mark.parametrize("seed", range(5))
def test_a_stored_best_is_never_slower_than_the_default(seed: int) -> None:
    on = Synthetic(Machine(np.random.default_rng(seed), 0.03), ladder(9, 0.0002))
    final = finals(on.search(on.truth), launch(seed), launches, on, PROBLEM, 0.05, seed, on.clock)
    assert final is not None
    assert final.default is not None
    assert final.best.timing.median_ms <= final.default.timing.median_ms


def test_the_vendor_and_the_baselines_are_told_beside_the_winner() -> None:
    truth = {**ladder(10), PROBLEM: 9e-5, launch(0, "tiled"): 2e-4, launch(1, "tiled"): 3e-4, launch(0, "naive"): 5e-3}
    on = runner(truth, 0.002)
    outcomes = on.search(truth)
    assert isinstance(outcomes[-1], Measured)
    final = run(on, launch(5), outcomes)
    assert final.vendor is not None
    assert final.vendor.timing.median_ms == pytest.approx(0.09, rel=0.005)
    assert final.baselines["tiled"].timing.samples == final.best.timing.samples
    assert final.baselines["tiled"].config["number"] == 0
    assert final.baselines["naive"].timing.median_ms == pytest.approx(5, rel=0.005)
    assert final.baselines["naive"].seconds != outcomes[-1].seconds
    assert set(on.sampled[-2]) == {launch(0), launch(5), launch(0, "tiled"), launch(0, "naive"), PROBLEM}
    assert not final.reasons


def test_a_vendor_that_was_refused_is_told_so() -> None:
    on = runner(ladder(3))
    refused = Rejected("vendor", Config(()), "space", "none here")
    final = run(on, None, [refused, *on.search(on.truth)])
    assert final.vendor is None
    assert final.reasons["vendor"] == "none here"


@pytest.mark.parametrize("limit", [0.05, 0.5])
def test_the_limit_of_timed_launches_is_kept(limit: float) -> None:
    on = runner(ladder(24, 0.0001), 0.02)
    on.reference = 1e-9
    outcomes = on.search(on.truth)
    started = on.machine.now
    run(on, launch(20), outcomes, limit)
    assert on.machine.now - started <= 1.1 * limit


def test_large_launches_are_finished_in_the_rounds_that_fit() -> None:
    on = runner(ladder(10, 0.1, best=2.0), 0.001)
    outcomes = on.search(on.truth)
    started = on.machine.now
    final = run(on, launch(4), outcomes, limit=25.0)
    assert final.best.config["number"] == 0
    assert final.default is not None
    assert final.default.timing.samples == final.best.timing.samples == 5
    assert on.machine.now - started <= 25.0


@pytest.mark.parametrize(("limit", "samples"), [(7.0, 3), (0.5, 1)])
def test_where_five_rounds_do_not_fit_there_are_fewer_and_it_is_said(limit: float, samples: int) -> None:
    on = runner(ladder(10, 0.1, best=2.0), 0.001)
    outcomes = on.search(on.truth)
    started = on.machine.now
    final = run(on, launch(4), outcomes, limit)
    assert final.best.timing.samples == samples
    assert final.best.timing.limited
    assert (final.best.timing.ci95_ms is None) == (samples == 1)
    assert final.default is None
    assert on.machine.now - started <= max(limit, 2.1)


def test_five_report_rounds_may_exceed_the_limit_up_to_the_most() -> None:
    on = runner({**ladder(3, best=0.02), launch(0, "tiled"): 0.05, PROBLEM: 0.01}, 0.002)
    outcomes, started = on.search(on.truth), on.machine.now
    short = finals(outcomes, launch(2), launches, on, PROBLEM, 0.3, 3, on.clock)
    assert short is not None
    assert (short.baselines, {*short.reasons} >= {"tiled"}) == ({}, True)
    assert on.machine.now - started <= 0.4
    started = on.machine.now
    long = finals(outcomes, launch(2), launches, on, PROBLEM, 0.3, 3, on.clock, most=5.0)
    assert long is not None
    assert {*long.reasons} == {"naive"}
    assert min(one.timing.samples for one in (long.best, long.default, long.vendor) if one) >= 5
    assert on.machine.now - started <= 3.0


def test_unproved_entry_keeps_its_figure_at_the_budgets_end() -> None:
    on = Hurried(Machine(np.random.default_rng(1), 0.002), {**ladder(2), launch(0, "tiled"): 2e-4, PROBLEM: 9e-5})
    final = run(on, launch(1))
    assert final.best.config["number"] == 0
    assert final.default is not None
    assert "tiled" in final.baselines


MACHINES: dict[str, dict[str, Any]] = {
    "quiet": {"scale": 0.002},
    "white": {"scale": 0.01},
    "heavy": {"scale": 0.01, "tail": 3},
    "AR 0.8": {"scale": 0.01, "phi": 0.8, "common": 0.7},
    "drift": {"scale": 0.01, "drift": 0.02},
}


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", MACHINES)
def test_the_choice_costs_little_and_the_report_is_no_flattery(kind: str) -> None:
    regrets, optimism = [], []
    for _ in range(10):
        on = runner(ladder(20, 0.003), **MACHINES[kind])
        final = run(on, limit=3.0)
        best = on.truth[launch(final.best.config["number"])]
        regrets.append(best / 1e-4 - 1)
        optimism.append(1 - final.best.timing.median_ms / 1e3 / (best * np.exp(on.machine.drift * on.machine.now)))
    assert np.mean(regrets) <= 0.002
    assert max(regrets) <= 0.0061
    assert abs(np.mean(optimism)) <= 0.01
