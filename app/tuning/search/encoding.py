"""Configs as points of the unit cube, for models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.space import Config

Matrix = NDArray[np.float64]
Rows = NDArray[np.intp]


def codes(configs: Sequence[Config]) -> Matrix:
    """A row for each config, a column for each parameter that varies: log2 of its values, from 0 to 1.

    Tile sizes and the like act by ratios. A parameter that is not above zero everywhere is shifted to begin at one.
    """
    raw = _values(configs)
    lowest = raw.min(axis=0, initial=np.inf)
    return scaled(np.log2(np.where(lowest > 0, raw, raw - lowest + 1)))


def _values(configs: Sequence[Config]) -> Matrix:
    """A row for each config, a column for each name in alphabetical order, 0 where a config has no such parameter."""
    orders = {tuple([name for name, _ in config.items_]) for config in configs}
    names = sorted({name for order in orders for name in order})
    if len(orders) == 1:  # those of one space
        (order,) = orders
        values = np.array([[value for _, value in config.items_] for config in configs], dtype=np.float64)
        return values.reshape(len(configs), len(order))[:, [order.index(name) for name in names]]
    items = [dict(config.items_) for config in configs]
    values = np.array([[one.get(name, 0) for name in names] for one in items], dtype=np.float64)
    return values.reshape(len(configs), len(names))


def scaled(columns: Matrix) -> Matrix:
    """Columns from 0 to 1, without those that do not vary."""
    if not len(columns):
        return columns
    low, span = columns.min(axis=0), np.ptp(columns, axis=0)
    varies = span > 0
    return np.asarray((columns[:, varies] - low[varies]) / span[varies])


def indicators(columns: Matrix, most: int) -> tuple[Matrix, Rows]:
    """A column for each value of every column that has three to `most`, and which column each is of.

    Two configs of unlike values are then equally far apart, however far the values are: a cliff needs no slope.
    """
    found: list[Matrix] = []
    of: list[int] = []
    for place, column in enumerate(columns.T):
        values = np.unique(column)
        if 2 < len(values) <= most:  # noqa: PLR2004  two values are as far apart as can be already
            found += [(column == value) / np.sqrt(2) for value in values]
            of += [place] * len(values)
    return np.array(found).T.reshape(len(columns), len(found)), np.array(of, dtype=np.intp)
