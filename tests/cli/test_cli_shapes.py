"""Shapes as they are typed."""

from __future__ import annotations

import pytest

from app.cli.shapes import shapes_of
from app.client import Shape


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        (["1000", "1200", "800"], [Shape(1000, 1200, 800)]),
        (["1000x1200x800"], [Shape(1000, 1200, 800)]),
        (["512"], [Shape(512, 512, 512)]),
        (["1", "2", "3", "4", "5", "6"], [Shape(1, 2, 3), Shape(4, 5, 6)]),
        (["7x8x9", "1X2X3"], [Shape(7, 8, 9), Shape(1, 2, 3)]),
        ([], []),
    ],
)
def test_a_shape_is_typed_in_any_of_three_ways(words: list[str], shapes: list[Shape]) -> None:
    assert shapes_of(words) == shapes


def test_a_batch_is_every_shapes() -> None:
    assert shapes_of(["2x3x4", "5x6x7"], batch=8) == [Shape(2, 3, 4, 8), Shape(5, 6, 7, 8)]


@pytest.mark.parametrize("words", [["1", "2"], ["1x2"], ["axbxc"], ["0x1x1"], ["1.5"], ["-1", "2", "3"], ["1x2x3x4"]])
def test_what_is_no_shape_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"shape|size"):
        shapes_of(words)
