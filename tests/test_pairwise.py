"""The pairwise cover: every pair that may be, few rows, the same each time; and what it leaves out."""

from __future__ import annotations

import random
import secrets
from itertools import product

import pytest

from tests.support import pairwise


@pytest.mark.parametrize(
    ("sizes", "most"), [((4,), 4), ((3, 5), 15), ((4, 3, 3, 4), 20), ((2,) * 10, 10), ((6, 4, 4), 28), ((5, 1, 5), 25)]
)
def test_every_pair_is_covered_by_few_rows(sizes: tuple[int, ...], most: int) -> None:
    rows = list(product(*map(range, sizes)))
    kept = list(pairwise.cover(rows))
    assert len(set(kept)) == len(kept) <= most
    assert set().union(*map(pairwise.pairs, kept)) == set().union(*map(pairwise.pairs, rows))
    assert kept == list(pairwise.cover(rows))


def test_pairs_of_allowed_rows_alone_are_covered() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311 - rows, not secrets
    for _ in range(20):
        every = list(product(*(range(draw.randint(1, 5)) for _ in range(draw.randint(2, 4)))))
        rows = draw.sample(every, draw.randint(1, len(every)))
        kept = list(pairwise.cover(rows))
        assert set(kept) <= set(rows)
        assert set().union(*map(pairwise.pairs, kept)) == set().union(*map(pairwise.pairs, rows))


def test_what_adds_no_pair_is_marked_and_what_is_not_allowed_is_not_there() -> None:
    mark = pairwise.crossed(lambda a, b, c: a != b or c, a=range(3), b=[0, 1, 2], c=[True, False]).mark
    names, rows = mark.args
    assert names == ("a", "b", "c")
    assert len(rows) == 3 * 3 * 2 - 3
    left_out = [row for row in rows if [mark.name for mark in row.marks] == ["sampling"]]
    assert all(not row.marks for row in rows if row not in left_out)
    assert 9 <= len(rows) - len(left_out) <= 12
