"""The tuner's loop on a counted clock: what it attempts, in which order, what it builds ahead, and when it ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from threading import Event

import pytest

from app.tuning.budget import Budget, Forecast
from app.tuning.outcome import Accuracy, FinalReport, Measured, Outcome, Rejected, Timing, best_of
from app.tuning.runner import Contender, InterleavedSamples, OutOfTime
from app.tuning.search.search_task import SearchTask, make_strategy
from app.tuning.search.strategy import SearchInputs, Strategy, strategy
from app.tuning.task import Task
from app.tuning.tuner import tune
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.waiting import until

PROBLEM = Problem(64, 48, 80)
KERNELS = (CATALOGUE["naive"], CATALOGUE["tiled"])
LIMITS = Limits(threads=256, shared_bytes=2**15, warp=1, sms=2, bandwidth=1e10, peak=1e11, peak64=5e10)
DEVICE = Device("opencl:0", "opencl", "a CPU", "x86", "1", "2", "3", "uuid", 2**33, LIMITS)
VENDOR = Rejected("vendor", Config(()), "space", "none here")


def legal(kernel: Kernel) -> int:
    return len(kernel.space.legal(PROBLEM, DEVICE))


def seconds_of(launch: Launch) -> float:
    """Smaller blocks are faster, and naive is a little slower than tiled."""
    return 1e-3 * (1 + launch.threads / 1024 + (launch.kernel == "naive") / 4)


@dataclass
class Scripted:
    """Stands for a device: remembers what was built and attempted; time passes with every attempt."""

    seconds: float = 0.0
    width: int = 4
    now: float = 0.0
    launches: list[Launch] = field(default_factory=list)
    prepared: list[Launch] = field(default_factory=list)
    bests: list[float | None] = field(default_factory=list)
    proved: list[int] = field(default_factory=list)  # attempts before each proof
    sampled: int = 0
    compiling: str = ""  # the kernels whose binaries are not there before they are waited for, the last asked first
    awaited: list[Launch] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def prepare(self, launch: Launch) -> None:
        self.prepared.append(launch)

    def is_built(self, launch: Launch) -> bool:
        return launch.kernel not in self.compiling or launch in self.awaited

    def await_build(self, launches: Sequence[Launch], most: float = inf) -> None:
        del most
        self.awaited.append(next((one for one in launches if self.is_built(one)), launches[-1]))

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        if isinstance(contender, Problem):
            return VENDOR
        self.launches.append(contender)
        self.bests.append(best)
        self.now += self.seconds
        return outcome(contender)

    def finals(self) -> None:
        pass

    def stress_verify(self, launch: Launch) -> Rejected | None:
        del launch
        self.proved.append(len(self.launches))
        return None

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        self.sampled += 1
        each = [seconds_of(one) if isinstance(one, Launch) else 1.0 for one in contenders]
        self.now += rounds * sum(each)
        return InterleavedSamples(tuple((one,) * rounds for one in each), "events")


def outcome(launch: Launch) -> Outcome:
    """Blocks of 128 threads, and some others, are wrong; no default is."""
    if launch.threads % 7 == 2:
        return Rejected(launch.kernel, launch.config, "verify", "relative L2 error 1 exceeds 1e-6")
    milliseconds = 1e3 * seconds_of(launch)
    timing = Timing(milliseconds, (milliseconds, milliseconds), 3)
    return Measured(launch.kernel, launch.config, timing, Accuracy(1e-7, 1e-7))


def task(strategy: str = "random", seed: int = 11, refused: dict[str, list[Config]] | None = None) -> Task:
    return Task(KERNELS, PROBLEM, DEVICE, strategy, seed, refused=refused or {})


def run(
    runner: Scripted, budget: Budget, saved: Sequence[Outcome] = (), order: Task | None = None
) -> tuple[list[Outcome], FinalReport | None]:
    """A whole tune: the outcomes of our kernels, and the finals."""
    given = list(tune(order or task(), runner, lambda: budget, saved, runner.clock))
    finals = [one for one in given if isinstance(one, FinalReport)]
    return [one for one in given if not isinstance(one, FinalReport) and one.kernel != "vendor"], finals[
        0
    ] if finals else None


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("strategy", ["exhaustive", "random", "genetic", "auto"])
def test_without_a_budget_every_legal_config_is_attempted_once(strategy: str) -> None:
    runner = Scripted()
    outcomes, _ = run(runner, Budget(), order=task(strategy))
    tried = [(launch.kernel, launch.config) for launch in runner.launches]
    assert len(tried) == len(set(tried)) == len(outcomes) == sum(map(legal, KERNELS))


def test_vendor_comes_first_then_the_untuned_default_then_others_and_kernels_in_turn() -> None:
    runner = Scripted()
    given = list(tune(task(), runner, lambda: Budget(trials=4)))
    assert given[0] == VENDOR
    defaults = [kernel.default(PROBLEM, DEVICE) for kernel in KERNELS]
    assert [launch.config for launch in runner.launches[:2]] == defaults[::-1]
    assert [launch.kernel for launch in runner.launches] == ["tiled", "naive", *["naive", "tiled"] * 3]


def test_in_auto_a_lower_kernels_default_waits_until_the_leader_has_had_some_trials() -> None:
    low, middle, high = (replace(CATALOGUE["tiled"], name=name) for name in ("low", "middle", "high"))
    runner = Scripted()
    order = Task((CATALOGUE["naive"], low, middle, high), PROBLEM, DEVICE, "auto", 11)
    run(runner, Budget(trials=9), order=order)
    names = [launch.kernel for launch in runner.launches]
    assert names[:2] == ["high", "naive"], "the untuned default and a baseline"
    before = {name: Counter(names[: names.index(name)]) for name in ("middle", "low")}
    assert {name: max(counts.values()) for name, counts in before.items()} == {"middle": 2, "low": 4}
    first = {name: next(one.config for one in runner.launches if one.kernel == name) for name in ("middle", "low")}
    assert set(first.values()) == {middle.default(PROBLEM, DEVICE)}


def test_in_auto_a_kernel_that_is_forecast_to_be_far_slower_is_tried_after_all_others() -> None:
    low, middle, high = (replace(CATALOGUE["tiled"], name=name) for name in ("low", "middle", "high"))
    far = Forecast(launch=4e-3)  # the others take 1 to 1.25 ms

    def forecast(contender: Contender) -> Forecast:
        return far if isinstance(contender, Launch) and contender.kernel == "middle" else Forecast()

    runner = Scripted()
    order = Task((CATALOGUE["naive"], low, middle, high), PROBLEM, DEVICE, "auto", 11, forecast=forecast)
    run(runner, Budget(trials=9), order=order)
    names = [launch.kernel for launch in runner.launches]
    assert max(Counter(names[: names.index("low")]).values()) == 2
    assert set(names[names.index("middle") :]) == {"middle"}


def test_what_is_attempted_was_built_ahead_a_batch_at_a_time() -> None:
    runner = Scripted(width=4)
    run(runner, Budget(trials=20))
    assert runner.launches != runner.prepared  # kernels take turns, batches do not
    assert runner.launches[:2] == runner.prepared[:2]  # defaults are built before the first is attempted
    assert {launch.config for launch in runner.launches} == {launch.config for launch in runner.prepared}
    assert len(runner.prepared) == len(runner.launches)


def test_a_candidate_races_against_its_own_kernels_best() -> None:
    runner = Scripted()
    run(runner, Budget(trials=12))
    for number, (launch, best) in enumerate(zip(runner.launches, runner.bests, strict=True)):
        before = [one for one in runner.launches[:number] if one.kernel == launch.kernel]
        measured = [seconds_of(one) for one in before if isinstance(outcome(one), Measured)]
        assert best == (pytest.approx(min(measured)) if measured else None)


def test_a_budget_of_trials_is_each_kernels_own() -> None:
    outcomes, _ = run(Scripted(), Budget(trials=5))
    assert [len([one for one in outcomes if one.kernel == kernel.name]) for kernel in KERNELS] == [5, 5]


def test_a_kernel_that_is_exhausted_leaves_the_turns_to_the_others() -> None:
    outcomes, _ = run(Scripted(), Budget(trials=legal(KERNELS[0]) + 10))
    counts = [len([one for one in outcomes if one.kernel == kernel.name]) for kernel in KERNELS]
    assert counts == [legal(KERNELS[0]), legal(KERNELS[0]) + 10]


def test_a_trial_like_the_last_ones_is_not_begun_where_it_would_take_the_finals_time() -> None:
    runner = Scripted(seconds=0.9)
    run(runner, Budget(seconds=4.0), order=task("random"))
    # 3.2 of 4 s are the search's, of which a fourth trial would have ended after 3.6.
    assert len(runner.launches) == 3
    assert run(Scripted(seconds=0.4), Budget(seconds=4.0))[1] is not None


def test_a_budget_of_seconds_covers_search_and_finals() -> None:
    runner = Scripted(seconds=1.0)
    outcomes, final = run(runner, Budget(seconds=20.0))
    assert len(outcomes) == 16
    assert final is not None
    assert runner.now <= 21


def test_a_budget_that_is_raised_while_the_tune_runs_takes_effect_at_once() -> None:
    runner = Scripted()
    budgets = iter([Budget(trials=3)] * 4 + [Budget(trials=9)] * 1000)
    given = list(tune(task(), runner, lambda: next(budgets)))
    assert len([one for one in given if isinstance(one, (Measured, Rejected)) and one.kernel == "tiled"]) == 9


@pytest.mark.slow
def test_the_search_ends_once_little_more_is_expected() -> None:
    free, _ = run(Scripted(), Budget(), order=task("auto"))
    eager, _ = run(Scripted(), Budget(gain_percent=50.0), order=task("auto"))
    assert len(eager) <= len(free)


@pytest.mark.parametrize("budget", [Budget(trials=0), Budget(seconds=0.0), Budget(trials=1, seconds=0.5)])
def test_defaults_are_measured_even_when_the_budget_is_spent(budget: Budget) -> None:
    runner = Scripted(seconds=1.0)
    outcomes, _ = run(runner, budget)
    assert [one.config for one in outcomes] == [kernel.default(PROBLEM, DEVICE) for kernel in KERNELS[::-1]]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("done", [0, 1, 2, 3, 9, 20])
@pytest.mark.parametrize("strategy", ["exhaustive", "random", "genetic", "auto"])
def test_a_resumed_tune_repeats_nothing_and_keeps_its_budget(done: int, strategy: str) -> None:
    whole, _ = run(Scripted(), Budget(trials=10), order=task(strategy))
    runner = Scripted()
    rest, final = run(runner, Budget(trials=10), [VENDOR, *whole[:done]], task(strategy))
    assert len(rest) == len(whole) - done
    assert not {(one.kernel, one.config) for one in whole[:done]} & {(one.kernel, one.config) for one in rest}
    assert final is not None


@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
def test_a_fixed_order_resumes_where_it_was(strategy: str) -> None:
    whole, _ = run(Scripted(), Budget(trials=10), order=task(strategy))
    rest, _ = run(Scripted(), Budget(trials=10), whole[:7], task(strategy))
    assert rest == whole[7:]


def test_what_failed_here_before_is_not_tried_again_and_costs_no_trial() -> None:
    first, _ = run(Scripted(), Budget(trials=12))
    failed: dict[str, list[Config]] = {"naive": [], "tiled": []}
    for one in first:
        if isinstance(one, Rejected):
            failed[one.kernel].append(one.config)
    assert sum(map(len, failed.values())) > 0
    again, _ = run(Scripted(), Budget(trials=12), order=task(refused=failed))
    assert not {(one.kernel, one.config) for one in again} & {
        (name, config) for name, configs in failed.items() for config in configs
    }
    assert len(again) == 24


def test_a_default_that_the_space_refuses_is_rejected_by_the_rules_name() -> None:
    tiny = Device(
        "opencl:0", "opencl", "a CPU", "x86", "1", "2", "3", "uuid", 2**33, Limits(4, 16, 1, 1, 1.0, 1.0, 1.0)
    )
    runner = Scripted()
    outcomes, final = run(runner, Budget(), order=Task(KERNELS, PROBLEM, tiny, "auto", 1))
    assert {(one.kernel, getattr(one, "stage", None)) for one in outcomes} == {("naive", "space"), ("tiled", "space")}
    assert all("than the device allows" in getattr(one, "reason", "") for one in outcomes)
    assert not runner.launches
    assert final is None


def test_an_outcome_is_yielded_before_the_next_is_attempted() -> None:
    runner = Scripted()
    outcomes = tune(task(), runner, Budget)
    next(outcomes)  # the vendor's
    for count in range(1, 6):
        next(outcomes)
        assert len(runner.launches) == count


def test_finals_choose_nothing_slower_than_the_default() -> None:
    outcomes, final = run(Scripted(), Budget(trials=20))
    assert final is not None
    best = best_of(outcomes)
    assert best is not None
    assert (final.best.kernel, final.best.config) == (best.kernel, best.config)
    assert final.default is not None
    assert final.best.timing.median_ms <= final.default.timing.median_ms


def test_the_best_is_the_fastest_of_ours_and_never_the_vendors() -> None:
    outcomes, _ = run(Scripted(), Budget(trials=20))
    vendor = Measured("vendor", Config(()), Timing(1e-9, (0.0, 1.0), 3), Accuracy(0.0, 0.0))
    measured = [one for one in outcomes if isinstance(one, Measured)]
    best = best_of([*outcomes, vendor])
    assert best is not None
    assert best.timing.median_ms == min(one.timing.median_ms for one in measured)
    assert best.kernel != "vendor"


def test_where_nothing_was_measured_there_is_no_best() -> None:
    assert best_of([Rejected("naive", KERNELS[0].default(PROBLEM, DEVICE), "compile", "no")]) is None


@pytest.mark.slow
def test_auto_leaves_a_baseline_that_is_twice_slower_after_four_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"naive": 20.0, "tiled": 2.2, "register_tiled": 1.0}
    monkeypatch.setitem(globals(), "seconds_of", lambda launch: 1e-3 * times[launch.kernel])
    ladder = tuple(CATALOGUE[name] for name in times)
    for order, most in ((ladder, 4), (ladder[:2], legal(KERNELS[1]))):
        outcomes, _ = run(Scripted(), Budget(trials=legal(KERNELS[1])), order=Task(order, PROBLEM, DEVICE, "auto", 1))
        tried = {name: [one for one in outcomes if one.kernel == name] for name in times}
        assert len(tried["naive"]) <= 4
        assert len(tried["tiled"]) == most
        assert tried["naive"][0].config == KERNELS[0].default(PROBLEM, DEVICE)
        assert tried["tiled"][0].config == KERNELS[1].default(PROBLEM, DEVICE)


def test_the_finals_default_is_the_highest_kernels_that_has_one() -> None:
    closed = replace(CATALOGUE["tiled"], space=replace(CATALOGUE["tiled"].space, rules={"never": lambda *_: False}))
    order = Task((KERNELS[0], closed), PROBLEM, DEVICE, "random", 1)
    _, final = run(Scripted(), Budget(trials=6), order=order)
    assert final is not None
    assert final.default is not None
    assert (final.default.kernel, final.default.config) == ("naive", KERNELS[0].default(PROBLEM, DEVICE))


@pytest.mark.rotating
def test_auto_leaves_a_kernel_that_cannot_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(launch: Launch) -> float:
        return 1e-3 * (1 + launch.threads / 1024) * (50 if launch.kernel == "naive" else 1)

    monkeypatch.setitem(globals(), "seconds_of", slow)
    outcomes, _ = run(Scripted(), Budget(), order=task("auto"))
    counts = {kernel.name: len([one for one in outcomes if one.kernel == kernel.name]) for kernel in KERNELS}
    assert counts["tiled"] == legal(KERNELS[1])
    assert counts["naive"] <= legal(KERNELS[0])


class Thinker:
    """A strategy that thinks until it is let go; `begin` is told of."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.thinks, self.go = Event(), Event()
        self._begin = begin

    def ask(self, count: int) -> list[Config]:
        del count
        self._begin()
        self.thinks.set()
        self.go.wait(30)
        return []

    def tell(self, config: Config, seconds: float | None) -> None:
        pass

    def gain(self) -> float:
        return inf


def test_without_compilers_beside_no_space_is_listed_before_every_default_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, listed = Scripted(width=1), list[int]()

    def made(name: str, inputs: SearchInputs, seed: int) -> Strategy:
        listed.append(len(runner.launches))
        return strategy(name, inputs, seed)

    monkeypatch.setattr("app.tuning.search.search_task.strategy", made)
    run(runner, Budget(trials=4))
    assert len(listed) == len(KERNELS)
    assert min(listed) >= len(KERNELS)


def test_spaces_are_listed_once_and_in_a_thread_while_defaults_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, listing = list[str](), Event()

    class Slow(Scripted):
        def attempt(self, contender: Contender, best: float | None) -> Outcome:
            assert listing.wait(30)
            return super().attempt(contender, best)

    def made(name: str, inputs: SearchInputs, seed: int) -> Strategy:
        threads.append(threading.current_thread().name)
        listing.set()
        return strategy(name, inputs, seed)

    monkeypatch.setattr("app.tuning.search.search_task.strategy", made)
    run(Slow(width=4), Budget(trials=8))
    assert len(threads) == len(KERNELS)
    assert threads[0] == "listing spaces"


class Heard(Scripted):
    """Says when a kernel has had so many attempts."""

    def hear(self, kernel: str, count: int) -> Event:
        self.kernel, self.count, self.had = kernel, count, Event()
        return self.had

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        found = super().attempt(contender, best)
        if sum(launch.kernel == self.kernel for launch in self.launches) == self.count:
            self.had.set()
        return found


def test_a_search_goes_on_while_anothers_space_is_listed() -> None:
    runner = Heard(width=4)
    enough = runner.hear("tiled", 12)

    def made(asked: SearchTask) -> Strategy:
        assert asked.kernel.name == "tiled" or enough.wait(30)
        return make_strategy(asked)

    list(tune(replace(task("auto"), factory=made), runner, lambda: Budget(trials=20), (), runner.clock))
    kernels = [launch.kernel for launch in runner.launches]
    assert kernels.count("naive") > 1, "its space was listed in the end"
    assert kernels.index("naive", kernels.index("naive") + 1) > 11


def test_seeds_are_tried_while_their_space_is_listed_however_late_they_come() -> None:
    runner = Heard(width=4)
    enough = runner.hear("tiled", 4)

    def seeds(problem: Problem, device: Device) -> Sequence[Config]:
        Event().wait(0.05)  # the search asks meanwhile
        return KERNELS[-1].space.legal(problem, device)[:3]

    tiled = replace(KERNELS[-1], seeds=seeds)

    def made(asked: SearchTask) -> Strategy:
        assert asked.kernel.name != "tiled" or enough.wait(30)
        return make_strategy(asked)

    seeded = replace(task("auto"), kernels=(KERNELS[0], tiled), factory=made)
    assert len(list(tune(seeded, runner, lambda: Budget(trials=8), (), runner.clock))) > 8


def test_what_is_built_is_tried_before_what_is_still_compiling() -> None:
    runner = Scripted(compiling="tiled")
    run(runner, Budget(trials=10))
    assert [launch.kernel for launch in runner.launches[:2]] == ["tiled", "naive"]  # the defaults
    assert [launch.kernel for launch in runner.launches[2:8]] == ["naive"] * 6  # what was asked for at once
    assert {launch.kernel for launch in runner.launches[8:]} == {"naive", "tiled"}


def test_where_nothing_is_built_whatever_is_first_is_tried() -> None:
    runner = Scripted(compiling="naive tiled")
    run(runner, Budget(trials=10))
    searched = [launch for launch in runner.awaited if launch in runner.launches[2:]]
    assert searched == runner.launches[2:]  # none was tried that was not waited for
    assert len(searched) > 8


def test_others_defaults_are_tried_while_the_untuned_one_compiles() -> None:
    runner = Scripted(compiling="naive tiled")
    outcomes, _ = run(runner, Budget(trials=4), order=task("auto"))
    assert [one.kernel for one in outcomes[:2]] == ["naive", "tiled"]
    assert [one.config for one in outcomes[:2]] == [kernel.default(PROBLEM, DEVICE) for kernel in KERNELS]


def test_slow_strategy_leaves_the_finals_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = Scripted(seconds=1.0)
    thinker = Thinker(lambda: setattr(runner, "now", 16.5))
    monkeypatch.setattr("app.tuning.search.search_task.strategy", lambda *_: thinker)
    try:
        outcomes, final = run(runner, Budget(seconds=20.0))
    finally:
        thinker.go.set()
    assert [one.config for one in outcomes] == [kernel.default(PROBLEM, DEVICE) for kernel in KERNELS[::-1]]
    assert final is not None
    assert final.best.kernel == "tiled"
    assert runner.now <= 20


def test_what_reading_the_budget_raises_is_heard_while_a_strategy_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    thinker = Thinker(lambda: None)
    monkeypatch.setattr("app.tuning.search.search_task.strategy", lambda *_: thinker)

    def budget() -> Budget:
        if thinker.thinks.is_set():
            raise KeyboardInterrupt
        return Budget(trials=9)

    try:
        with pytest.raises(KeyboardInterrupt):
            list(tune(task(), Scripted(), budget))
    finally:
        thinker.go.set()


def test_what_a_strategy_raises_ends_the_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("app.tuning.search.search_task.strategy", lambda *_: Thinker(fails))
    with pytest.raises(ZeroDivisionError):
        run(Scripted(), Budget(trials=4))


def hurried(launch: dict[str, float], build: dict[str, float] | None = None) -> Task:
    """A task whose launches, and builds, are forecast to take so many seconds, by kernel; the vendor's 0."""

    def forecast(contender: Contender) -> Forecast:
        kernel = contender.kernel if isinstance(contender, Launch) else "vendor"
        return Forecast(launch.get(kernel, 0.0), (build or {}).get(kernel, 0.0))

    return replace(task(), forecast=forecast)


def test_trial_forecast_over_the_budget_is_not_tried() -> None:
    runner = Scripted(seconds=0.1)
    outcomes, final = run(runner, Budget(trials=3, seconds=60.0), order=hurried({"naive": 190.0}))
    (refused,) = [one for one in outcomes if one.kernel == "naive"]
    assert isinstance(refused, Rejected)
    assert (refused.stage, refused.config) == ("forecast", KERNELS[0].default(PROBLEM, DEVICE))
    assert "190" in refused.reason
    assert {launch.kernel for launch in runner.launches} == {"tiled"}
    assert final is not None
    assert final.best.kernel == "tiled"


def test_short_budget_tries_and_proves_the_shortest_first() -> None:
    runner = Scripted(seconds=0.1)
    run(runner, Budget(trials=2, seconds=4.0), order=hurried({"naive": 0.25, "tiled": 0.2}, {"tiled": 2.8}))
    assert runner.launches[0].kernel == "naive"
    assert runner.proved[0] == 1


def test_interrupted_finals_keep_the_proved_best() -> None:
    runner = Scripted(seconds=0.1)

    def sample(*_: object) -> InterleavedSamples:
        raise OutOfTime

    runner.sample = sample  # type: ignore[method-assign, assignment]
    _, final = run(runner, Budget(trials=4, seconds=10.0))
    assert final is not None
    assert final.best.timing.median_ms > 0
    assert {*final.reasons} == {"default", "naive", "tiled", "vendor"}
    assert not final.baselines


def test_where_time_runs_out_before_anything_is_proved_there_is_no_final() -> None:
    runner = Scripted()

    def attempt(*_: object) -> Outcome:
        raise OutOfTime

    runner.attempt = attempt  # type: ignore[method-assign, assignment]
    assert run(runner, Budget(seconds=1.0)) == ([], None)


@pytest.mark.parametrize("width", [4, 1])
def test_the_first_configs_are_compiled_while_the_vendor_is_measured(width: int) -> None:
    """What the highest kernel's strategy begins with, and no config twice; with one compiler nothing is asked early."""
    runner = Scripted(width=width)
    tuned = tune(task("auto"), runner, lambda: Budget(trials=20), (), runner.clock)
    assert next(tuned) == VENDOR
    if width > 1:
        until(lambda: len(runner.prepared) >= 6, 60, each=0.01, meanwhile=lambda: runner.prepared)
    early = Counter(launch.kernel for launch in runner.prepared)
    assert early == {"naive": 1, "tiled": 5 if width > 1 else 1}
    assert len(list(tuned)) == 41  # 20 trials of each, and the report
    assert len(set(runner.launches)) == len(runner.launches) == len(runner.prepared)


def test_short_budget_tries_the_untuned_default_first_where_three_quarters_of_it_suffice() -> None:
    runner = Scripted(seconds=0.1)
    run(runner, Budget(trials=2, seconds=4.0), order=hurried({"naive": 0.4, "tiled": 0.2}, {"tiled": 2.4}))
    assert runner.launches[0].kernel == "tiled"
    assert runner.proved[0] == 1


def test_short_budget_tries_the_untuned_default_first_where_nothing_is_promoted_without_it() -> None:
    runner = Scripted(seconds=0.1)
    run(runner, Budget(trials=2, seconds=4.0), order=hurried({"naive": 0.4, "tiled": 0.2}, {"tiled": 3.4}))
    assert runner.launches[0].kernel == "tiled"


def test_what_is_built_ahead_fits_whatever_its_build_was_forecast_to_take() -> None:
    order = hurried({"naive": 0.1, "tiled": 0.1}, {"tiled": 190.0})
    outcomes, _ = run(Scripted(seconds=0.1), Budget(trials=2, seconds=4.0), order=order)
    assert not [one for one in outcomes if isinstance(one, Rejected) and one.stage == "forecast"]
    alone, _ = run(Scripted(seconds=0.1, width=1), Budget(trials=2, seconds=4.0), order=order)
    assert {one.kernel for one in alone if isinstance(one, Rejected) and one.stage == "forecast"} == {"tiled"}


def test_builds_made_ahead_are_made_at_the_same_time() -> None:
    order = hurried({"naive": 0.1, "tiled": 0.1}, {"naive": 0.7, "tiled": 0.7})
    for width in (1, 4):
        runner = Scripted(seconds=0.1, width=width)
        run(runner, Budget(trials=2, seconds=6.0), order=order)
        assert (runner.proved[0] == 1) == (width == 1)  # in a hurry each is proved


def test_what_is_slower_than_the_untuned_default_is_forecast_is_no_best() -> None:
    runner = Scripted(seconds=0.1, width=1)
    faster = hurried({"naive": 1e-9, "tiled": 1e-9}, {"tiled": 190.0})
    outcomes, final = run(runner, Budget(trials=3, seconds=60.0), order=faster)
    assert any(isinstance(one, Measured) for one in outcomes)
    assert final is None
    best = min(one.timing.median_ms for one in outcomes if isinstance(one, Measured)) / 1e3
    close = hurried({"naive": 1e-9, "tiled": best / 1.2}, {"tiled": 190.0})
    assert run(Scripted(seconds=0.1, width=1), Budget(trials=3, seconds=60.0), order=close)[1] is not None
    slower = hurried({"naive": 1e-9, "tiled": 10.0}, {"tiled": 190.0})
    _, final = run(Scripted(seconds=0.1, width=1), Budget(trials=3, seconds=60.0), order=slower)
    assert final is not None
    assert final.best.kernel == "naive"


def test_an_untuned_default_that_decides_is_tried_though_its_build_is_forecast_over_the_budget() -> None:
    runner = Scripted(seconds=0.1)
    outcomes, final = run(
        runner, Budget(trials=3, seconds=60.0), order=hurried({"naive": 2e-9, "tiled": 1e-9}, {"tiled": 100.0})
    )
    assert runner.launches[0].kernel == "tiled"
    assert final is not None
    assert not [one for one in outcomes if isinstance(one, Rejected) and one.stage == "forecast"]
