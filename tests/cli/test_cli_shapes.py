"""Shapes as they are typed."""

from __future__ import annotations

import pytest

from app.cli.options import shape_of, shapes_of
from tilewise import Shape


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        (["1000", "1200", "800"], [Shape(1000, 1200, 800)]),
        (["1000x1200x800"], [Shape(1000, 1200, 800)]),
        (["512"], [Shape(512, 512, 512)]),
        (["1", "2", "3", "4", "5", "6"], [Shape(1, 2, 3), Shape(4, 5, 6)]),
        (["7x8x9", "1X2X3"], [Shape(7, 8, 9), Shape(1, 2, 3)]),
        (["4096x16x4096", "x", "8", "1x2x3"], [Shape(4096, 16, 4096, 8), Shape(1, 2, 3)]),
        (["4096x16x4096x8", "5 x6 x 7"], [Shape(4096, 16, 4096, 8), Shape(5, 6, 7)]),
        (["9x9x9", "512", "1x2x3"], [Shape(9, 9, 9), Shape(512, 512, 512), Shape(1, 2, 3)]),
        ([], []),
    ],
)
def test_shapes_are_typed_in_any_notation_and_keep_their_order(words: list[str], shapes: list[Shape]) -> None:
    assert shapes_of(words) == shapes


def test_a_batch_is_every_shapes() -> None:
    assert shapes_of(["2x3x4", "5x6x7x8"], batch=8) == [Shape(2, 3, 4, 8), Shape(5, 6, 7, 8)]


def test_batch_said_twice_and_different_is_refused() -> None:
    with pytest.raises(ValueError, match="2x3x4 x 5 has a batch of 5, and --batch is 8"):
        shapes_of(["2x3x4x5"], batch=8)


def test_where_one_shape_is_wanted_several_are_refused() -> None:
    assert shape_of(["2", "3", "4"]) == Shape(2, 3, 4)
    with pytest.raises(ValueError, match="one shape was expected, got 2"):
        shape_of(["2x3x4", "5x6x7"])


@pytest.mark.parametrize("words", [["1", "2"], ["1x2"], ["axbxc"], ["0x1x1"], ["1.5"], ["-1", "2", "3"], ["1x2x3x4x5"]])
def test_what_is_no_shape_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"shape|size"):
        shapes_of(words)
