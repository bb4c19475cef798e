"""Shapes as a caller of the client may give them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import index

from app.client.answers import Shape

ShapeLike = Shape | str | int | tuple[int, int, int] | tuple[int, int, int, int]


def shape_of(shape: ShapeLike) -> Shape:
    """Make a Shape of a Shape, a text such as "512x512x512", sizes, or one size for a cube; raises ValueError."""
    if isinstance(shape, Shape):
        return shape
    if isinstance(shape, str):
        return Shape.parse(shape)
    sizes = tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),) * 3
    if len(sizes) not in {3, 4}:
        raise ValueError(f"a shape is (m, n, k) or (m, n, k, batch), got {shape!r}")
    return Shape(*sizes)


def shapes_of(shapes: str | Shape | Iterable[ShapeLike]) -> list[Shape]:
    """Make a list of one shape or of several; raises ValueError for (m, n, k) alone, which could be three cubes."""
    if isinstance(shapes, str | Shape):
        return [shape_of(shapes)]
    several = list(shapes)
    if isinstance(shapes, tuple) and len(several) in {3, 4} and all(isinstance(each, int) for each in several):
        text = "x".join(map(str, several))
        raise ValueError(f"{shapes} could be one shape or {len(several)} cubes: give {text!r} or [{shapes}], or a list")
    return [shape_of(each) for each in several]


def sizes_of(m: ShapeLike, n: int | None, k: int | None, batch: int | None) -> Shape:
    """Make a Shape of m, n and k, or of what shape_of takes in m's place; raises ValueError where a batch is twice."""
    if (n is None) != (k is None):
        raise ValueError("a shape is m, n and k, or one text such as '512x512x512'")
    shape = shape_of(m) if n is None or k is None else Shape(index(m), n, k)  # type: ignore[arg-type]  # index refuses
    if batch is None:
        return shape
    if shape.batch not in {1, batch}:
        raise ValueError(f"{shape} has a batch of {shape.batch}, and batch is {batch}")
    return replace(shape, batch=batch)
