"""The loop of a tune: ask the kernels' strategies in turn, build ahead, attempt, tell, yield; then the finals.

No I/O and no clock but the given; a runner does what needs a device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.tuning.finals import finals
from app.tuning.outcome import Final as Finals
from app.tuning.outcome import Measured, Outcome, Rejected
from app.tuning.runner import Runner
from app.tuning.search import Known, Landscape, Strategy, strategy
from kernels.device import Device
from kernels.features import features
from kernels.kernel import Kernel, Launch
from kernels.problem import Problem
from kernels.space import Config

VENDOR: Final = "vendor"
_SEARCHING: Final = 0.8  # of the seconds: the rest is the finals'
_FINALS: Final = (1.0, 5.0)  # seconds of finals at least, where the budget has them, and at most
_HOPELESS: Final = 2.0  # times the best of all kernels: one that is slower is left by auto
_CHANCE: Final = 16  # trials that every kernel has before
_BASELINES: Final = ("naive", "tiled")
_BASELINES_CHANCE: Final = 4  # what others are compared with need not be at its best where it is that slow
_BATCH: Final = 8  # configs asked for at once at least: a strategy thinks once for all of them


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a tune of one problem may take; None is no limit.

    Trials of each kernel, seconds of it all, finals included; and the search ends once each kernel's best is expected
    to be beaten by less than `gain_percent`.
    """

    trials: int | None = None
    seconds: float | None = None
    gain_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What is tuned: kernels for a problem on a device, and how.

    `known` is what a kernel's configs took elsewhere, `refused` are configs that failed here before and are not tried.
    """

    kernels: Sequence[Kernel]
    problem: Problem
    device: Device
    strategy: str
    seed: int
    known: Mapping[str, Sequence[Known]] = field(default_factory=dict)
    refused: Mapping[str, Iterable[Config]] = field(default_factory=dict)


@dataclass(slots=True)
class _Search:
    """One kernel's part of a tune: `told` are the configs with an outcome, `ready` those asked for and building."""

    kernel: Kernel
    default: Config
    strategy: Strategy
    told: set[Config] = field(default_factory=set)
    ready: deque[Config] = field(default_factory=deque)
    best: float | None = None
    exhausted: bool = False

    def tell(self, outcome: Outcome) -> None:
        seconds = outcome.timing.median_ms / 1e3 if isinstance(outcome, Measured) else None
        self.told.add(outcome.config)
        self.strategy.tell(outcome.config, seconds)
        if seconds is not None:
            self.best = seconds if self.best is None else min(self.best, seconds)


def tune(
    task: Task,
    runner: Runner,
    budget: Callable[[], Budget],
    saved: Sequence[Outcome] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome | Finals]:
    """Yield the outcome of every config tried, and last the finals'.

    The vendor's library comes first, then each kernel's default, then each kernel's strategy in turn until it is
    exhausted or the budget, read anew before each trial, is spent; defaults are attempted even then. `saved` outcomes
    are told to the strategies and count as trials; they are neither attempted again nor yielded. A default that the
    space refuses is Rejected at stage space. There are no finals where nothing could be measured. Raises ValueError
    where the strategy is unknown.
    """
    started = clock()
    outcomes = list(saved)
    for outcome in _search(task, runner, budget, outcomes, lambda: clock() - started):
        outcomes.append(outcome)
        yield outcome
    final = _finals(task, runner, outcomes, _finals_limit(budget().seconds, clock() - started))
    if final is not None:
        yield final


def _finals_limit(seconds: float | None, spent: float) -> float:
    """Seconds of finals: a share of what the search took, one at least; the most where seconds are not counted."""
    least, most = _FINALS
    if seconds is None:
        return most
    return min(max(least, spent * (1 / _SEARCHING - 1)), most, max((1 - _SEARCHING) * seconds, seconds - spent))


def best_of(outcomes: Iterable[Outcome]) -> Measured | None:
    """The fastest of our kernels by its median; the vendor's library is never the best."""
    ours = (outcome for outcome in outcomes if isinstance(outcome, Measured) and outcome.kernel != VENDOR)
    return min(ours, key=lambda outcome: outcome.timing.median_ms, default=None)


def _search(
    task: Task, runner: Runner, budget: Callable[[], Budget], saved: Sequence[Outcome], spent: Callable[[], float]
) -> Iterator[Outcome]:
    if not any(outcome.kernel == VENDOR for outcome in saved):
        yield runner.attempt(task.problem, None)
    searches = [_begun(kernel, task, saved) for kernel in task.kernels]
    for search in searches:
        if search.default not in search.told:
            yield _try(search, search.default, task, runner)
    while True:
        now = budget()
        if now.seconds is not None and spent() >= _SEARCHING * now.seconds:
            return
        left = [search for search in searches if not search.exhausted and not _is_done(search, searches, task, now)]
        if not left:
            return
        search = min(left, key=lambda one: _turn(one, searches, task))
        config = _next(search, task, runner, now)
        if config is None:
            search.exhausted = True
        else:
            yield _try(search, config, task, runner)


def _begun(kernel: Kernel, task: Task, saved: Sequence[Outcome]) -> _Search:
    default = kernel.default(task.problem, task.device)
    landscape = Landscape(
        kernel.space.legal(task.problem, task.device),
        default,
        partial(_features, kernel, task.problem, task.device),
        task.known.get(kernel.name, ()),
    )
    search = _Search(kernel, default, strategy(task.strategy, landscape, task.seed))
    for config in task.refused.get(kernel.name, ()):
        search.strategy.tell(config, None)
    for outcome in saved:
        if outcome.kernel == kernel.name:
            search.tell(outcome)
    return search


def _features(kernel: Kernel, problem: Problem, device: Device, config: Config) -> tuple[float, ...]:
    return features(kernel, config, problem, device)


def _is_done(search: _Search, searches: Sequence[_Search], task: Task, budget: Budget) -> bool:
    """Whether the budget has nothing left for this kernel, or nothing more is expected of it."""
    if budget.trials is not None and len(search.told) >= budget.trials:
        return True
    if budget.gain_percent is not None and 100 * search.strategy.gain() < budget.gain_percent:
        return True
    chance = _BASELINES_CHANCE if search.kernel.name in _BASELINES else _CHANCE
    return task.strategy == "auto" and len(search.told) >= chance and _slowness(search, searches) > _HOPELESS


def _turn(search: _Search, searches: Sequence[_Search], task: Task) -> float:
    """Who is tried next has the least: a kernel's trials, and in auto twice as slow a kernel has a quarter of them."""
    return len(search.told) * (_slowness(search, searches) ** 2 if task.strategy == "auto" else 1.0)


def _slowness(search: _Search, searches: Sequence[_Search]) -> float:
    """A kernel's best over the best of all; 1 where nothing is known."""
    fastest = min((one.best for one in searches if one.best is not None), default=None)
    return search.best / fastest if search.best and fastest else 1.0


def _next(search: _Search, task: Task, runner: Runner, budget: Budget) -> Config | None:
    """The next config, with those after it building already: a batch keeps the compilers busy."""
    size = max(runner.width, _BATCH)
    room = size - len(search.ready)
    if budget.trials is not None:
        room = min(room, budget.trials - len(search.told) - len(search.ready))
    if len(search.ready) <= (size // 2 if runner.width > 1 else 0) and room > 0:
        for config in search.strategy.ask(room):
            search.ready.append(config)
            launch = _launch(search, config, task)
            if isinstance(launch, Launch):
                runner.prepare(launch)
    return search.ready.popleft() if search.ready else None


def _try(search: _Search, config: Config, task: Task, runner: Runner) -> Outcome:
    launch = _launch(search, config, task)
    outcome = runner.attempt(launch, search.best) if isinstance(launch, Launch) else launch
    search.tell(outcome)
    return outcome


def _launch(search: _Search, config: Config, task: Task) -> Launch | Rejected:
    refusal = search.kernel.space.refusal(config, task.problem, task.device)
    if refusal is not None:
        return Rejected(search.kernel.name, config, "space", refusal)
    return search.kernel.launch(config, task.problem, task.device)


def _finals(task: Task, runner: Runner, outcomes: Sequence[Outcome], limit: float) -> Finals | None:
    kernels = {kernel.name: kernel for kernel in task.kernels}

    def launch(of: Measured) -> Launch:
        return kernels[of.kernel].launch(of.config, task.problem, task.device)

    return finals(outcomes, _untuned(task), launch, runner, task.problem, limit, task.seed)


def _untuned(task: Task) -> Launch | None:
    """The default of the highest kernel whose space allows one, or None."""
    for kernel in reversed(task.kernels):
        default = kernel.default(task.problem, task.device)
        if kernel.space.refusal(default, task.problem, task.device) is None:
            return kernel.launch(default, task.problem, task.device)
    return None
