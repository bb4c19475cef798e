"""The Strategy protocol, ask and tell, and the registry of strategies."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final, Protocol

from app.tuning.search.bayesian import BayesianSearch
from app.tuning.search.genetic import GeneticSearch
from app.tuning.search.history import SearchHistory
from app.tuning.search.inputs import PriorTimes, SearchInputs
from kernels.space import Config

__all__ = ["STRATEGIES", "PriorTimes", "SearchInputs", "Strategy", "strategy"]

STRATEGIES: Final = ("auto", "exhaustive", "genetic", "random")
_EXHAUSTIBLE: Final = 64


class Strategy(Protocol):
    """A search strategy. It asks for every config at most once, and never for one with an outcome."""

    def ask(self, count: int) -> list[Config]:
        """Up to `count` configs to try next, also while earlier ones are pending; none if the space is exhausted."""
        ...

    def tell(self, config: Config, seconds: float | None) -> None:
        """Take in a config's median seconds (None: it was rejected); it need not have been asked for."""
        ...

    def gain(self) -> float:
        """The fraction by which the next configs are expected to beat the best; infinity: unknown."""
        ...


class _Listed:
    """A fixed order, gone through once."""

    def __init__(self, inputs: SearchInputs, seed: int | None) -> None:
        self._history = SearchHistory(inputs)
        order = list(range(len(self._history.configs)))
        if seed is not None:
            random.Random(seed).shuffle(order)  # noqa: S311  a search order is no secret
        if self._history.first is not None:
            order.remove(self._history.first)
            order.insert(0, self._history.first)
        self._left: Iterable[int] = iter(order)

    def ask(self, count: int) -> list[Config]:
        taken: list[Config] = []
        while len(taken) < count and (row := next(iter(self._left), None)) is not None:
            if self._history.open[row]:
                taken += self._history.take([row])
        return taken

    def tell(self, config: Config, seconds: float | None) -> None:
        self._history.tell(config, seconds)

    def gain(self) -> float:
        return self._history.gain()


def strategy(name: str, inputs: SearchInputs, seed: int) -> Strategy:
    """Make a strategy over the inputs' configs; it asks for their first, the default, first.

    exhaustive keeps the space's order, random is a shuffle that the seed decides, genetic breeds from the fastest, and
    auto asks models what to try; up to 64 configs auto is exhaustive. A first that is not legal is left out. Raises
    ValueError where the name is unknown.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {name!r}")
    if name == "genetic":
        return GeneticSearch(inputs, seed)
    if name == "auto" and len(inputs.configs) > _EXHAUSTIBLE:
        return BayesianSearch(inputs, seed)
    return _Listed(inputs, seed if name == "random" else None)
