"""The loop of a tune: ask the kernels' strategies in turn, compile ahead, attempt, tell, yield; then the finals.

No I/O, and no clock but the one given; the runner uses the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Final

from app.tuning.budget import CLEARLY, FINALS, Budget, Deadline, Forecast
from app.tuning.finals import BESIDE, OVER, absent, finals
from app.tuning.first_trials import decides, first_trials
from app.tuning.kernel_search import BASELINES, KernelSearch, is_done, slowness, turn_of
from app.tuning.outcome import FORECAST, VENDOR, FinalReport, Measured, Outcome, Rejected, best_of
from app.tuning.runner import Contender, OutOfTime, ProvingRunner, Runner, unaffordable
from app.tuning.search.ask_thread import Once, ask_in_thread, begin_in_thread
from app.tuning.search.search_task import SearchTask
from app.tuning.search.strategy import Strategy
from app.tuning.task import Task
from kernels.kernel import LESSON, Kernel
from kernels.launch import Launch
from kernels.space import Config

_REPORT: Final = 5  # rounds of whoever is told that the finals are left time for at least
_CHECK: Final = 5e-3  # seconds beside each sample of the report: the reference kernel's, and the next one's turn
_LATER: Final = 1.5  # times its forecast that a trial of the search may take without costing the finals their time
_LOADING: Final = 0.1  # seconds until what is built can be launched
_BATCH: Final = 8  # configs asked for at once at least: a strategy thinks once for all of them
_EARLY: Final = 4  # configs of each kernel that are compiled during the first trials
_SEEDED: Final = 8  # where its model names them: they are tried while its space is listed, which takes as long


def tune(
    task: Task,
    runner: Runner,
    budget: Callable[[], Budget],
    saved: Sequence[Outcome] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome | FinalReport]:
    """Yield the outcome of every config tried, and last the report of the finals.

    The vendor's library comes first, then the untuned default and the other kernels' (in `auto` the baselines' alone:
    the others have their turns in the search), and each kernel's strategy in turn until it is exhausted or the budget,
    read before each trial, is spent. If there are few seconds, the untuned default comes before all, or the default
    with the shortest trial if it may not fit, and is stress-verified at once, so that there is a winner however soon
    they end. There is no report if the untuned default could not be measured and is forecast to be clearly faster.
    A trial forecast to take longer than is left is Rejected at stage forecast, which ends the search unless it is a
    default's. `saved` outcomes are told to the strategies and count as trials; they are neither attempted again nor
    yielded. A default that the space refuses is Rejected at stage space. There are no finals where nothing could be
    measured.
    Raises ValueError if the strategy is unknown.
    """
    started = clock()
    outcomes = list(saved)
    given, proving = Deadline(budget, lambda: clock() - started), ProvingRunner(runner)
    try:
        for outcome in _search(task, proving, given, outcomes):
            outcomes.append(outcome)
            yield outcome
    except OutOfTime:
        pass
    runner.finals()
    try:
        final = _finals(task, proving, outcomes, *given.finals(task.thorough))
    except OutOfTime:
        final = _fallback(proving, outcomes, task.untuned)
    if final is not None and not _is_worse_than_untuned(final, task, outcomes):
        yield final


def _search(task: Task, runner: ProvingRunner, given: Deadline, saved: Sequence[Outcome]) -> Iterator[Outcome]:
    turn = Lock()  # the first space is to be listed soonest
    searches = [_begun(kernel, task, saved, turn) for kernel in task.kernels]
    yield from _firsts(task, runner, given, searches, saved)
    while given.has_time():
        now = given.budget()
        left = [
            search for search in searches if not search.exhausted and not is_done(search, searches, task.strategy, now)
        ]
        if not left:
            return
        turns = {search.kernel.name: turn_of(search, left, searches, task.strategy) for search in left}
        left.sort(key=lambda one: turns[one.kernel.name])
        for one in _to_fill(left, task, runner, given):
            _fill(one, task, runner, given, max(_BATCH, runner.width // len(left)))
        search = _first_built(left, task, runner, given)
        if not given.has_time():
            return
        config = _next(search, task, runner)
        contender = None if config is None else search.launch(config, task)
        if contender is None or unaffordable(contender, partial(_expected, task, runner), given.searching() / _LATER):
            search.exhausted = True
        else:
            before = given.spent()
            outcome = _try(search, contender, runner)
            given.trials.append(given.spent() - before)
            yield outcome
            if runner.width > 1 and config == search.default and slowness(search, searches) < CLEARLY:
                _open_in_thread([search], task, runner, given)


def _first_built(left: Sequence[KernelSearch], task: Task, runner: ProvingRunner, given: Deadline) -> KernelSearch:
    """The first search of which a config is built, once there is one; the first of all where none has asked for any."""
    built = next((one for one in left if _built(one, task, runner) is not None), None)
    launches = [search.launch(config, task) for search in left for config in search.ready]
    asked = [one for one in launches if isinstance(one, Launch)]
    if built is None and asked:
        runner.await_build(asked, given.searching())
        built = next((one for one in left if _built(one, task, runner) is not None), None)
    return built or left[0]


def _firsts(
    task: Task, runner: ProvingRunner, given: Deadline, searches: Sequence[KernelSearch], saved: Sequence[Outcome]
) -> Iterator[Outcome]:
    """Try the vendor's library and the defaults that come first, and stress-verify the fastest of them.

    In a hurry, the fastest so far is proved after each.
    """
    turns, hurry = first_trials(task, given, searches, saved, ahead=runner.width > 1)
    for first, contender in turns:
        if isinstance(contender, Launch):
            runner.prepare(contender)  # all at once: one after the other they would take the search's time
            if first is not None:
                first.prepared.add(contender.config)
    later = [one for one in searches[::-1] if one.default not in one.told][: runner.width // 2]
    for each in later:
        _prepare(each, each.default, task, runner)  # those whose turns come in the search
    if runner.width > 1:  # else the thread would disturb what is measured
        _open_in_thread(searches[-1:] if task.strategy == "auto" else searches[::-1], task, runner, given)
    found = [one for one in saved if any((one.kernel, one.config) == (s.kernel.name, s.default) for s in searches)]
    for search, contender in turns:
        if not hurry:
            for outcome in _meanwhile(contender, later, task, runner):
                found.append(outcome)
                yield outcome
        left = given.searching() if runner.held else given.left()
        is_decisive = decides(contender, task, found, left)
        refused = None if is_decisive else unaffordable(contender, partial(_expected, task, runner), left)
        outcome = _try(search, refused or contender, runner)
        found.append(outcome)
        yield outcome
        if hurry:
            _prove_fastest(task, runner, given, found)
    _prove_fastest(task, runner, given, found)


def _meanwhile(
    awaited: Contender | Rejected, later: Sequence[KernelSearch], task: Task, runner: ProvingRunner
) -> Iterator[Outcome]:
    """Try others' defaults that are built while the one whose turn it is is not; all are forecast to fit together."""
    waiting = {one.kernel.name: one for one in later if task.strategy == "auto" and one.default in one.prepared}
    while isinstance(awaited, Launch) and not runner.is_built(awaited):
        others = [one for one in waiting.values() if one.default not in one.told and one.kernel.name != awaited.kernel]
        launches = [launch for one in others if isinstance(launch := one.launch(one.default, task), Launch)]
        runner.await_build([awaited, *launches])
        ready = next((launch for launch in launches if runner.is_built(launch)), None)
        if ready is not None:
            yield _try(waiting.pop(ready.kernel), ready, runner)


def _prove_fastest(task: Task, runner: ProvingRunner, given: Deadline, found: Sequence[Outcome]) -> None:
    """Stress-verify the fastest so far if seconds are limited, so that there is a winner however soon they end."""
    best = best_of(found)
    if best is None or runner.held or given.left() == math.inf:
        return
    kernel = next(kernel for kernel in task.kernels if kernel.name == best.kernel)
    before = given.spent()
    runner.stress_verify(kernel.launch(best.config, task.problem, task.device))
    proofs = 1 if runner.width > 1 else 2  # later ones take a third of the first where builds overlap
    given.reserve = proofs * (given.spent() - before) + _reporting(best, task.untuned, found)


def _reporting(best: Measured, default: Launch | None, found: Sequence[Outcome]) -> float:
    """Seconds of five rounds of the winner and those whom the report has beside it, but for those too slow for it."""
    names = {(best.kernel, best.config)} | ({(default.kernel, default.config)} if default is not None else set())
    told = [
        one.timing.median_ms / 1e3
        for one in found
        if isinstance(one, Measured) and (one.kernel in {VENDOR, *BASELINES} or (one.kernel, one.config) in names)
    ]
    total = 0.0
    for seconds in sorted(told):
        rounds = _REPORT * (seconds + _CHECK)
        total += rounds if total + rounds <= FINALS[1] else 0.0
    return total


def _begun(kernel: Kernel, task: Task, saved: Sequence[Outcome], turn: Lock) -> KernelSearch:
    default = kernel.default(task.problem, task.device)
    search = KernelSearch(kernel, default, Once(partial(_strategy, kernel, default, task), turn))
    launch = search.launch(default, task)
    search.forecast = task.forecast(launch).launch if isinstance(launch, Launch) else 0.0
    search.untold.extend((config, None) for config in task.refused.get(kernel.name, ()))
    for outcome in saved:
        if outcome.kernel == kernel.name:
            search.tell(outcome)
    return search


def _strategy(kernel: Kernel, default: Config, task: Task) -> Strategy:
    known = task.known.get(kernel.name, ())
    return task.factory(SearchTask(kernel, default, task.problem, task.device, task.strategy, task.seed, known))


def _next(search: KernelSearch, task: Task, runner: Runner) -> Config | None:
    """The first config that is built, or that the search asked for first where none is; None: it has no more."""
    config = _built(search, task, runner) or (search.ready[0] if search.ready else None)
    if config is not None:
        search.ready.remove(config)
    return config


def _built(search: KernelSearch, task: Task, runner: Runner) -> Config | None:
    """The first config of those asked for that need not be waited for."""
    launches = ((config, search.launch(config, task)) for config in search.ready)
    return next((config for config, one in launches if isinstance(one, Rejected) or runner.is_built(one)), None)


def _to_fill(left: Sequence[KernelSearch], task: Task, runner: Runner, given: Deadline) -> list[KernelSearch]:
    """Whose turn it is, and the fastest kernel's search, which goes on while others' configs are built.

    In auto a space is waited for if its kernel is the fastest so far; those of others are listed in a thread until it
    is their turn again.
    """
    if runner.width == 1 or task.strategy != "auto":
        return [left[0]]
    fastest = min((search for search in left if search.best), key=lambda one: one.best or math.inf, default=None)
    for search in left:
        if search is fastest or not search.is_waiting or search.default not in search.told:
            return [search] if fastest is None or fastest is search or fastest.is_waiting else [search, fastest]
        if not search.opened:
            _open_in_thread([search], task, runner, given)
    return [left[0]]


def _has_time(search: KernelSearch) -> bool:
    """Whether what is ready, its default or its seeds, is tried before its space has to be listed."""
    return search.default not in search.told or (bool(search.ready) and not search.begin.is_made)


def _open_in_thread(searches: Sequence[KernelSearch], task: Task, runner: Runner, given: Deadline) -> None:
    for search in searches:
        search.opened = True
        search.seeded.clear()
    begin_in_thread([partial(_open, search, task, runner, given) for search in searches], given)


def _open(search: KernelSearch, task: Task, runner: Runner, given: Deadline) -> None:
    """Start the builds of a search's first configs, and list its space, while others are measured."""
    try:
        trials = given.budget().trials
        seeds = search.kernel.seeds if task.strategy == "auto" and not task.known.get(search.kernel.name) else None
        most = _SEEDED if seeds else _EARLY
        count = most if trials is None else min(most, trials - len(search.told) - 1)
        early = search.seed(seeds(task.problem, task.device), count) if seeds and count > 0 else None
    finally:
        search.seeded.set()
    if count > 0:
        for config in [search.default, *(search.ask_early(count) if early is None else early)]:
            _prepare(search, config, task, runner)
        search.begin()


def _fill(search: KernelSearch, task: Task, runner: Runner, given: Deadline, size: int) -> None:
    """Ask for up to `size` configs and start their builds where few are waiting: batches keep the compilers busy."""
    budget = given.budget()
    if not {search.default} & {*search.told, *search.ready}:  # its turn comes in the search
        search.ready.append(search.default)
        _prepare(search, search.default, task, runner)
        if runner.width > 1:  # its space is listed once it is known to be near the fastest
            return
    if runner.width > 1 and task.strategy == "auto" and _has_time(search):
        return
    room = size - len(search.ready)
    if budget.trials is not None:
        room = min(room, budget.trials - len(search.told) - len(search.ready))
    if len(search.ready) <= (size // 2 if runner.width > 1 else 0) and room > 0:
        asked = ask_in_thread(partial(search.ask, room), given)
        for config in (one for one in asked if one not in search.ready):
            search.ready.append(config)
            _prepare(search, config, task, runner)


def _prepare(search: KernelSearch, config: Config, task: Task, runner: Runner) -> None:
    """Start the build of a config that the space allows, once."""
    launch = search.launch(config, task)
    if isinstance(launch, Launch) and config not in search.prepared:
        search.prepared.add(config)
        runner.prepare(launch)


def _expected(task: Task, runner: Runner, contender: Contender) -> Forecast:
    """The forecast of a trial, in which a build that was made ahead is only loaded."""
    found = task.forecast(contender)
    is_made = runner.width > 1 and isinstance(contender, Launch) and runner.is_built(contender)
    return replace(found, build=min(_LOADING, found.build)) if is_made else found


def _try(search: KernelSearch | None, contender: Contender | Rejected, runner: Runner) -> Outcome:
    best = None if search is None else search.best
    outcome = contender if isinstance(contender, Rejected) else runner.attempt(contender, best)
    if search is not None:
        search.tell(outcome)
    return outcome


def _finals(task: Task, runner: Runner, outcomes: Sequence[Outcome], limit: float, most: float) -> FinalReport | None:
    kernels = {kernel.name: kernel for kernel in task.kernels}

    def launch(of: Measured) -> Launch:
        return kernels[of.kernel].launch(of.config, task.problem, task.device)

    return finals(outcomes, task.untuned, launch, runner, task.problem, limit, task.seed, most=most)


def _fallback(runner: ProvingRunner, outcomes: Sequence[Outcome], default: Launch | None) -> FinalReport | None:
    """The fastest of the search that was proved, alone: there was no time to measure anything beside it."""
    best = best_of(one for one in outcomes if (one.kernel, one.config) in runner.held)
    reasons = {name: absent(name, outcomes, default) or OVER for name in BESIDE}
    return None if best is None else FinalReport((), best, None, None, {}, reasons)


def _is_worse_than_untuned(final: FinalReport, task: Task, outcomes: Sequence[Outcome]) -> bool:
    """Whether what serves without a tune was not measured for want of time, and is forecast to be clearly faster.

    A few seconds that sufficed for naive alone must not have products made by it.
    """
    untuned = task.untuned
    if untuned is None or task.kernels[-1].role == LESSON:  # what a lesson takes is told, and serves nothing
        return False
    seen = [one for one in outcomes if (one.kernel, one.config) == (untuned.kernel, untuned.config)]
    if any(isinstance(one, Measured) or one.stage != FORECAST for one in seen):
        return False
    forecast = task.forecast(untuned).launch
    return 0 < CLEARLY * forecast < final.best.timing.median_ms / 1e3  # 0: nothing forecasts
