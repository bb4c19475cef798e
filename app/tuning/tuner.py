"""The loop of a tune: ask the kernels' strategies in turn, attempt, tell, yield. No I/O and no clock but the given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.tuning.outcome import Measured, Outcome, Rejected
from app.tuning.search import Strategy, strategy
from kernels.device import Device
from kernels.kernel import Kernel, Launch
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a tune of one problem may take: trials of each kernel, seconds of it all; None is no limit."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class _Search:
    """One kernel's part of a tune; `known` are the configs that have an outcome, earlier ones included."""

    kernel: Kernel
    default: Config
    strategy: Strategy
    known: set[Config]

    def tell(self, outcome: Outcome) -> None:
        self.known.add(outcome.config)
        self.strategy.tell(outcome.config, _seconds(outcome))


def tune(
    kernels: Sequence[Kernel],
    problem: Problem,
    device: Device,
    strategy_name: str,
    budget: Budget,
    seed: int,
    attempt: Callable[[Launch], Outcome],
    saved: Sequence[Outcome] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome]:
    """Yield the outcome of every config tried: first each kernel's default, then each kernel's strategy in turn.

    Ends when every strategy is exhausted or the budget is spent; defaults are attempted even then. `saved` outcomes
    are told to the strategies and count as trials; they are neither attempted again nor yielded. A default that the
    space refuses is Rejected at stage space. Raises ValueError where the strategy is unknown.
    """
    started = clock()
    searches = [_search(kernel, problem, device, strategy_name, seed, saved) for kernel in kernels]
    for search in searches:
        if search.default not in search.known:
            yield _try(search, search.default, problem, device, attempt)
    while searches and (budget.seconds is None or clock() - started < budget.seconds):
        search = min(searches, key=lambda one: len(one.known))  # in turn, also where saved outcomes end within a round
        config = _next(search, budget)
        if config is None:
            searches.remove(search)
        else:
            yield _try(search, config, problem, device, attempt)


def best_of(outcomes: Iterable[Outcome]) -> Measured | None:
    """The fastest of our kernels by its median; the vendor's library is never the best."""
    ours = (outcome for outcome in outcomes if isinstance(outcome, Measured) and outcome.kernel != "vendor")
    return min(ours, key=lambda outcome: outcome.timing.median_ms, default=None)


def _search(
    kernel: Kernel, problem: Problem, device: Device, strategy_name: str, seed: int, saved: Sequence[Outcome]
) -> _Search:
    default = kernel.default(problem, device)
    order = strategy(strategy_name, kernel.space.legal(problem, device), default, seed)
    search = _Search(kernel, default, order, set())
    for outcome in saved:
        if outcome.kernel == kernel.name:
            search.tell(outcome)
    return search


def _next(search: _Search, budget: Budget) -> Config | None:
    spent = budget.trials is not None and len(search.known) >= budget.trials
    return None if spent else search.strategy.ask()


def _try(
    search: _Search, config: Config, problem: Problem, device: Device, attempt: Callable[[Launch], Outcome]
) -> Outcome:
    refusal = search.kernel.space.refusal(config, problem, device)
    outcome: Outcome
    if refusal is not None:
        outcome = Rejected(search.kernel.name, config, "space", refusal)
    else:
        outcome = attempt(search.kernel.launch(config, problem, device))
    search.tell(outcome)
    return outcome


def _seconds(outcome: Outcome) -> float | None:
    return outcome.timing.median_ms / 1e3 if isinstance(outcome, Measured) else None
