"""The worker's side of strategies in a process of their own: they are made here, and asked by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from app.devices.process import WorkerLink
from app.tuning.search import bayesian
from app.tuning.search.search_task import SearchTask, make_strategy
from app.tuning.search.strategy import Strategy
from kernels.space import Config

Told: TypeAlias = Sequence[tuple[Config, float | None]]
_KEPT: Final = 64  # strategies: those of a shape's kernels, and of some shapes before it


@dataclass(slots=True)
class Strategies:
    """Those of a process by number, the last used last."""

    by_number: dict[int, Strategy] = field(default_factory=dict)

    def informed(self, number: int, told: Told) -> Strategy | None:
        """The strategy of a number once it was told; None where this process has none of it."""
        found = self.by_number.pop(number, None)
        if found is not None:
            self.by_number[number] = found
            for outcome in told:
                found.tell(*outcome)
        return found


def strategies() -> Strategies:
    """Set up a worker that searches."""
    bayesian.preload()
    return Strategies()


def make(held: Strategies, link: WorkerLink, number: int, task: SearchTask) -> None:
    """Make a strategy, which lists its space."""
    del link
    held.by_number[number] = make_strategy(task)
    if len(held.by_number) > _KEPT:
        del held.by_number[next(iter(held.by_number))]


def ask(held: Strategies, link: WorkerLink, number: int, told: Told, count: int) -> list[Config] | None:
    """The next configs of a strategy that is told of outcomes first; None where it is not here any more."""
    del link
    found = held.informed(number, told)
    return None if found is None else found.ask(count)


def gain(held: Strategies, link: WorkerLink, number: int, told: Told) -> float | None:
    """What a strategy that is told of outcomes still expects to gain; None where it is not here any more."""
    del link
    found = held.informed(number, told)
    return None if found is None else found.gain()
