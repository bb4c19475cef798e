"""Shapes as callers of the client give them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.client.shared_service import Served
from tilewise import Client, Shape
from tilewise.shapes import ShapeLike, shapes_of, sizes_of


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ("64x48x32", [Shape(64, 48, 32)]),
        (Shape(64, 48, 32), [Shape(64, 48, 32)]),
        (
            [(64, 48, 32), (1, 2, 3, 4), "5x6x7 x 8", 9, Shape(1, 1, 1)],
            [Shape(64, 48, 32), Shape(1, 2, 3, 4), Shape(5, 6, 7, 8), Shape(9, 9, 9), Shape(1, 1, 1)],
        ),
        ([64, 48, 32], [Shape(64, 64, 64), Shape(48, 48, 48), Shape(32, 32, 32)]),
        ([np.int64(5), np.array([1, 2, 3])], [Shape(5, 5, 5), Shape(1, 2, 3)]),
    ],
)
def test_shapes_are_taken_as_texts_tuples_sizes_or_shapes(given: list[ShapeLike], shapes: list[Shape]) -> None:
    assert shapes_of(given) == shapes


def test_bare_tuple_of_sizes_is_refused_because_it_could_be_three_cubes() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(ValueError, match=r"one shape or 3 cubes: .*'64x48x32'"):
        client.tune((64, 48, 32))


@pytest.mark.parametrize("given", ["64x48", [(1, 2)], ["a"], [(1, 2, 3, 4, 5)]])
def test_what_is_no_shape_is_refused_before_it_is_sent(given: list[ShapeLike]) -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(ValueError, match="a shape is"):
        client.tune(given)


def test_batch_said_twice_and_different_is_refused() -> None:
    assert sizes_of("1x2x3", None, None, 4) == sizes_of(1, 2, 3, 4) == Shape(1, 2, 3, 4)
    with pytest.raises(ValueError, match="has a batch of 4, and batch is 5"):
        sizes_of("1x2x3x4", None, None, 5)


@pytest.mark.slow
def test_text_of_a_shape_stands_for_its_sizes_in_every_call(service: Served) -> None:
    with Client(service.url) as client:
        job = client.tune("24x20x28", kernels=["naive"], trials=1, wait=True)
        assert [best.config for best in job.best]
        assert client.best_config("24x20x28").problem == client.best_config(24, 20, 28).problem
        assert client.best_config("24x20x28").match == "exact"
