"""A steady-state genetic algorithm over configs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from app.tuning.search.history import SearchHistory
from app.tuning.search.inputs import SearchInputs
from kernels.space import Config

_POPULATION: Final = 20
_RIVALS: Final = 3  # a parent is the fastest of this many drawn from the population
_TRIES: Final = 30  # children that may turn out illegal or known before one is drawn blindly


class GeneticSearch:
    """A steady-state genetic algorithm: uniform crossover of two parents, one parameter mutated on average.

    The population is the fastest of all measured configs, so that a child competes as soon as it is measured, while
    others are still pending (Syswerda, Foundations of Genetic Algorithms, 1991).
    """

    def __init__(self, inputs: SearchInputs, seed: int) -> None:
        self._history = SearchHistory(inputs)
        self._random = random.Random(seed)  # noqa: S311  a search order is no secret
        order = list(range(len(self._history.configs)))
        self._random.shuffle(order)
        self._strangers = order
        configs = self._history.configs
        self._values = [
            sorted({value for _, value in column}) for column in zip(*(c.items_ for c in configs), strict=True)
        ]

    def ask(self, count: int) -> list[Config]:
        """The default, strangers until there is a population, and then children."""
        rows = self._history.opening(count)
        taken = self._history.take(rows)
        while len(taken) < count:
            row = self._child() if self._history.seen >= _POPULATION else self._stranger()
            if row is None:
                break
            taken += self._history.take([row])
        return taken

    def tell(self, config: Config, seconds: float | None) -> None:
        """Record the outcome of a config."""
        self._history.tell(config, seconds)

    def gain(self) -> float:
        """As the ledger estimates it."""
        return self._history.gain()

    def _stranger(self) -> int | None:
        while self._strangers:
            row = self._strangers[-1]
            if self._history.open[row]:
                return row
            self._strangers.pop()
        return None

    def _child(self) -> int | None:
        population = sorted(self._history.seconds, key=lambda row: self._history.seconds[row])[:_POPULATION]
        for _ in range(_TRIES if len(population) > 1 else 0):
            row = self._history.row(self._bred(self._parent(population), self._parent(population)))
            if row is not None and self._history.open[row]:
                return row
        return self._stranger()

    def _parent(self, population: Sequence[int]) -> Config:
        """One of the population, by tournament: it is sorted, so that the least place wins."""
        place = min(self._random.randrange(len(population)) for _ in range(_RIVALS))
        return self._history.configs[population[place]]

    def _bred(self, one: Config, other: Config) -> Config:
        items = []
        for mine, yours, values in zip(one.items_, other.items_, self._values, strict=True):
            name, value = self._random.choice((mine, yours))
            if self._random.random() < 1 / len(self._values):
                value = self._random.choice(values)
            items.append((name, value))
        return Config(tuple(items))
