"""SearchTask: what a kernel's strategy is made of, and the strategy made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from app.tuning.search.inputs import PriorTimes, SearchInputs
from app.tuning.search.strategy import Strategy, strategy
from kernels import KERNELS
from kernels.device import Device
from kernels.features import features, predicted
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A kernel whose space is searched for a problem on a device, from its default on, and by which strategy."""

    kernel: Kernel
    default: Config
    problem: Problem
    device: Device
    strategy: str
    seed: int
    known: Sequence[PriorTimes] = field(default=(), repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by the kernel's name: its space has conditions that cannot be."""
        rest = self.default, self.problem, self.device, self.strategy, self.seed, self.known
        return _named, (self.kernel.name, *rest)


def _named(name: str, *rest: Any) -> SearchTask:
    return SearchTask(KERNELS[name], *rest)


StrategyFactory: TypeAlias = Callable[[SearchTask], Strategy]


def make_strategy(task: SearchTask) -> Strategy:
    """The strategy, which lists the space; raises ValueError where its name is unknown."""
    kernel, problem, device = task.kernel, task.problem, task.device
    found, alone = partial(_features, kernel, problem, device), partial(_predicted, kernel, problem, device)
    inputs = SearchInputs(kernel.space.legal(problem, device), task.default, found, task.known, alone)
    return strategy(task.strategy, inputs, task.seed)


def _features(kernel: Kernel, problem: Problem, device: Device, config: Config) -> tuple[float, ...]:
    return features(kernel, config, problem, device)


def _predicted(kernel: Kernel, problem: Problem, device: Device, config: Config) -> float:
    return predicted(kernel, config, problem, device)
