"""Search history: which configs are open, asked for, measured or rejected."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, log
from typing import Final

import numpy as np

from app.tuning.search.inputs import SearchInputs
from kernels.space import Config

_TAIL: Final = 8  # of the fastest configs, how many say how far apart records lie
_ENOUGH: Final = 16  # measured configs before a gain is estimated
_BATCH: Final = 8  # configs over which a gain is expected


class SearchHistory:
    """The legal configs by row, in the space's order, and their outcomes. Configs outside the space are ignored."""

    def __init__(self, inputs: SearchInputs) -> None:
        self._rows: dict[Config, int] = {}
        for config in inputs.configs:
            self._rows.setdefault(config, len(self._rows))
        self.configs = list(self._rows)
        self.first = self._rows.get(inputs.first)
        self.open = np.ones(len(self.configs), dtype=bool)
        self.seconds: dict[int, float] = {}
        self.rejected: dict[int, None] = {}
        self.pending: dict[int, None] = {}

    def row(self, config: Config) -> int | None:
        """A config's row, or None if the space has no such config."""
        return self._rows.get(config)

    @property
    def seen(self) -> int:
        """How many configs are measured, rejected or asked for."""
        return len(self.seconds) + len(self.rejected) + len(self.pending)

    def take(self, rows: Iterable[int]) -> list[Config]:
        """Hand out open configs."""
        taken = []
        for row in rows:
            self.open[row] = False
            self.pending[row] = None
            taken.append(self.configs[row])
        return taken

    def opening(self, count: int) -> list[int]:
        """The default, if it is still open and `count` is not 0."""
        return [self.first] if count > 0 and self.first is not None and self.open[self.first] else []

    def tell(self, config: Config, seconds: float | None) -> None:
        """Record a config's median seconds, or None if it was rejected."""
        row = self._rows.get(config)
        if row is None:
            return
        self.open[row] = False
        self.pending.pop(row, None)
        self.seconds.pop(row, None)
        self.rejected.pop(row, None)
        if seconds is None:
            self.rejected[row] = None
        else:
            self.seconds[row] = seconds

    def gain(self) -> float:
        """The fraction by which a further batch, chosen no better than those before, is expected to beat the best.

        The next of n + 1 is the best with a chance of 1 / (n + 1), and then by the gap between the two best, which is
        taken from the spacings of the fastest few (Renyi's representation of an exponential tail; Hill's estimate).
        """
        if not self.open.any():
            return 0.0
        measured = len(self.seconds)
        if measured < _ENOUGH:
            return inf
        fastest = sorted(self.seconds.values())[: _TAIL + 1]
        gap = sum(log(fastest[-1] / seconds) for seconds in fastest[:-1]) / _TAIL
        return 1 - exp(-_BATCH * gap / (measured + len(self.rejected) + 1))
