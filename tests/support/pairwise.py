"""Parametrisation by pairwise cover: every pair of two parameters' values is tried, not every combination of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Row = tuple[int, ...]
Pair = tuple[tuple[int, int], tuple[int, int]]


def crossed(allowed: Callable[..., bool] | None = None, /, **values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise by all combinations that are allowed; those that add no pair run with `-m sampling` alone."""
    lists = tuple(values.values())
    rows = [
        (places, row)
        for places, row in zip(product(*(range(len(of)) for of in lists)), product(*lists), strict=True)
        if allowed is None or allowed(**dict(zip(values, row, strict=True)))
    ]
    kept = set(cover([places for places, _ in rows]))
    marked = [
        pytest.param(
            *row,
            marks=() if places in kept else pytest.mark.sampling,
            id="-".join(map(label, values, places, row)),
        )
        for places, row in rows
    ]
    return pytest.mark.parametrize(tuple(values), marked)


def label(name: str, place: int, value: object) -> str:
    """What a value is called in a test's name: itself where that is short, its numbers, or its place."""
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, tuple) and all(isinstance(one, int) for one in value):
        return "x".join(str(int(one)) for one in value)
    return str(getattr(value, "key", f"{name}{place}"))


def cover(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows that have every pair that any row has: each time the one with most new pairs, the first of equals."""
    missing = {pair for row in rows for pair in pairs(row)}
    while missing:
        best = max(rows, key=lambda row: len(missing.intersection(pairs(row))))
        missing.difference_update(pairs(best))
        yield best


def pairs(row: Row) -> set[Pair]:
    """The pairs of a row, each a value's place in two parameters; of one parameter alone, the value with itself."""
    return set(combinations(enumerate(row), 2)) or {(at, at) for at in enumerate(row)}
