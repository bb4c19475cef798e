"""Strategies: which config of a space to try next. They ask, are told what became of it, and know nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kernels.space import Config

STRATEGIES: Final = ("auto", "exhaustive", "random")
_EXHAUSTIBLE: Final = 64


class Strategy(Protocol):
    """An order in which a space is tried. Every config is asked for once at most, never one that was told before."""

    def ask(self) -> Config | None:
        """Give the next config to try, or None where nothing is left."""
        ...

    def tell(self, config: Config, seconds: float | None) -> None:
        """Take in a config's median seconds (None: it was rejected); it need not have been asked for."""
        ...


class _Listed:
    """A fixed order, gone through once. A dict keeps the order and forgets a config at once, however long the list."""

    def __init__(self, order: Iterable[Config]) -> None:
        self._left = dict.fromkeys(order)

    def ask(self) -> Config | None:
        config = next(iter(self._left), None)
        if config is not None:
            del self._left[config]
        return config

    def tell(self, config: Config, seconds: float | None) -> None:
        del seconds  # a fixed order learns nothing from it
        self._left.pop(config, None)


def strategy(name: str, configs: Sequence[Config], first: Config, seed: int) -> Strategy:
    """Make a strategy over the legal `configs`, of which `first` (the default) is asked for first.

    exhaustive keeps the space's order, random is a shuffle that the seed decides, auto is exhaustive up to 64 configs
    and random beyond. A `first` that is not legal is left out. Raises ValueError where the name is unknown.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {name!r}")
    order = list(configs)
    if name == "random" or (name == "auto" and len(order) > _EXHAUSTIBLE):
        random.Random(seed).shuffle(order)  # noqa: S311  a search order is no secret
    return _Listed([first, *order] if first in order else order)
