"""KernelSearch: a tune's search of one kernel."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from app.tuning.outcome import Measured, Outcome
from app.tuning.search.strategy import Strategy
from kernels.kernel import Kernel
from kernels.space import Config


@dataclass(slots=True)
class KernelSearch:
    """The search of one kernel: `told` are the configs with an outcome, `ready` those asked for and compiling.

    `begin` makes the strategy, which lists the space: at the first question, or in a thread during the first trials,
    so that defaults come first however large it is. Outcomes that the strategy does not know yet are `untold`, and
    `early` are configs that it named before the first outcome. `prepared` are the configs whose builds were started.
    """

    kernel: Kernel
    default: Config
    begin: Callable[[], Strategy]
    told: set[Config] = field(default_factory=set)
    untold: deque[tuple[Config, float | None]] = field(default_factory=deque)
    ready: deque[Config] = field(default_factory=deque)
    early: list[Config] = field(default_factory=list)
    prepared: set[Config] = field(default_factory=set)
    best: float | None = None
    exhausted: bool = False
    strategy: Strategy | None = None
    _asking: Lock = field(default_factory=Lock)

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
        """The strategy's next configs, those first that it named early."""
        with self._asking:
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

    def _inform(self, strategy: Strategy) -> None:
        while self.untold:
            strategy.tell(*self.untold.popleft())
