"""KernelSearch: a tune's search of one kernel."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Final

from app.tuning.budget import Budget
from app.tuning.outcome import Measured, Outcome, Rejected
from app.tuning.search.ask_thread import Once
from app.tuning.search.strategy import Strategy
from app.tuning.task import Task
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.space import Config

BASELINES: Final = ("naive", "tiled")
_HOPELESS: Final = 2.0  # times the best of all kernels: one that is slower is left by auto
_CHANCE: Final = 16  # trials that every kernel has before
_FORLORN: Final = 3.0  # times the best of all kernels: one whose default is forecast to take that long is tried last
# What slowness counts in turns: of 1,038 kernels whose first trial took 1.5 times the fastest's and more, three won.
_SHUNNED: Final = 4
_APART: Final = 2  # trials of the leading kernel between the defaults of two kernels below the untuned one
_BASELINES_CHANCE: Final = 4  # what others are compared with need not be at its best where it is that slow


def _seeded() -> Event:
    event = Event()
    event.set()
    return event


@dataclass(slots=True)
class KernelSearch:
    """The search of one kernel: `told` are the configs with an outcome, `ready` those asked for and compiling.

    `begin` makes the strategy, which lists the space: at the first question, or in a thread during the first trials,
    so that defaults come first however large it is. `forecast` are the seconds that a launch of the default is forecast
    to take, 0 where nothing is known. Outcomes that the strategy does not know yet are `untold`, and
    `early` are configs that it named before the first outcome. `prepared` are the configs whose builds were started,
    and `opened` says that `begin` was called in a thread, which sets `seeded` once seeds can be asked for.
    """

    kernel: Kernel
    default: Config
    begin: Once[Strategy]
    forecast: float = 0.0
    told: set[Config] = field(default_factory=set)
    untold: deque[tuple[Config, float | None]] = field(default_factory=deque)
    ready: deque[Config] = field(default_factory=deque)
    early: list[Config] = field(default_factory=list)
    prepared: set[Config] = field(default_factory=set)
    best: float | None = None
    exhausted: bool = False
    opened: bool = False
    strategy: Strategy | None = None
    seeded: Event = field(default_factory=_seeded)
    _asking: Lock = field(default_factory=Lock)

    @property
    def is_waiting(self) -> bool:
        """Whether whoever asks has to wait until the space is listed."""
        return not (self.ready or self.early or self.begin.is_made)

    def seed(self, configs: Sequence[Config], count: int) -> list[Config]:
        """Take up to `count` configs to ask for before the strategy is begun; those without an outcome are returned."""
        with self._asking:
            unseen = [config for config in configs if config != self.default and config not in self.told]
            self.early = unseen[:count] if self.strategy is None else []
            return list(self.early)

    def ask_early(self, count: int) -> list[Config]:
        """The strategy's first `count` configs, the default left out or one more; none if it has been asked before."""
        with self._asking:
            if self.strategy is not None:
                return []
            strategy = self.begin()
            self._inform(strategy)
            self.early = [config for config in strategy.ask(count + 1) if config != self.default]
            self.strategy = strategy
            return list(self.early)

    def ask(self, count: int) -> list[Config]:
        """The strategy's next configs, those first that it named early; these alone while the space is being listed."""
        self.seeded.wait()
        with self._asking:
            if self.early and not self.begin.is_made:
                batch, self.early = self.early[:count], self.early[count:]
                return batch
            if self.strategy is None:
                self.strategy = self.begin()
            self._inform(self.strategy)
            batch, self.early = self.early[:count], self.early[count:]
            return [*batch, *self.strategy.ask(count - len(batch))] if len(batch) < count else batch

    def gain(self) -> float:
        """The relative gain that the strategy still expects; infinite before it was asked."""
        if self.strategy is None:
            return math.inf
        self._inform(self.strategy)
        return self.strategy.gain()

    def tell(self, outcome: Outcome) -> None:
        """Record an outcome."""
        seconds = outcome.timing.median_ms / 1e3 if isinstance(outcome, Measured) else None
        self.told.add(outcome.config)
        self.untold.append((outcome.config, seconds))
        if seconds is not None:
            self.best = seconds if self.best is None else min(self.best, seconds)

    def launch(self, config: Config, task: Task) -> Launch | Rejected:
        """The launch of a config, or why the space refuses it."""
        refusal = self.kernel.space.refusal(config, task.problem, task.device)
        if refusal is not None:
            return Rejected(self.kernel.name, config, "space", refusal)
        return self.kernel.launch(config, task.problem, task.device)

    def _inform(self, strategy: Strategy) -> None:
        while self.untold:
            strategy.tell(*self.untold.popleft())


def is_done(search: KernelSearch, searches: Sequence[KernelSearch], strategy: str, budget: Budget) -> bool:
    """Whether the budget has nothing left for this kernel, or nothing more is expected of it."""
    if budget.trials is not None and len(search.told) >= budget.trials:
        return True
    if budget.gain_percent is not None and 100 * search.gain() < budget.gain_percent:
        return True
    chance = _BASELINES_CHANCE if search.kernel.name in BASELINES else _CHANCE
    return strategy == "auto" and len(search.told) >= chance and slowness(search, searches) > _HOPELESS


def turn_of(
    search: KernelSearch, left: Sequence[KernelSearch], searches: Sequence[KernelSearch], strategy: str
) -> float:
    """Who is tried next has the least: a kernel's trials, and in auto twice as slow a kernel has a sixteenth of them.

    In auto those that were not tried yet come in between one by one, the highest rung first, but for those forecast to
    take far longer than the fastest.
    """
    if strategy != "auto":
        return len(search.told)
    if search.told:
        return len(search.told) * slowness(search, searches) ** _SHUNNED
    fastest = min((one.best for one in searches if one.best is not None), default=math.inf)
    highest = next((one for one in reversed(left) if not one.told and one.forecast <= _FORLORN * fastest), None)
    tried = sum(bool(one.told) and one.kernel.name not in BASELINES for one in searches)
    is_due = search is highest and max(len(one.told) for one in searches) >= _APART * tried
    return -1.0 if is_due else math.inf


def slowness(search: KernelSearch, searches: Sequence[KernelSearch]) -> float:
    """A kernel's best time over the best of all; 1 if there is none."""
    fastest = min((one.best for one in searches if one.best is not None), default=None)
    return search.best / fastest if search.best and fastest else 1.0
