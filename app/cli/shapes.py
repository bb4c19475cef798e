"""Shapes as a person types them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from tilewise import Shape

_TIMES: Final = "x\u00d7X"  # what stands between two sizes, however many blanks are around it


def shapes_of(words: Sequence[str], batch: int | None = None) -> list[Shape]:
    """Read words such as 512 (a cube), 512x512x512, 4096x16x4096 x 8, and sizes M N K in threes.

    `batch` is that of every shape that does not tell its own. Raises ValueError for what is no shape.
    """
    shapes: list[Shape] = []
    for sizes, group in groupby(_joined(" ".join(words)).split(), str.isdecimal):
        together = list(group)
        if sizes and len(together) > 1:
            together = _threes(together)
        shapes += map(Shape.parse, together)
    return [_batched(shape, batch) for shape in shapes]


def _joined(text: str) -> str:
    """The text with nothing but an x between the sizes of one shape."""
    for sign in _TIMES:
        text = "x".join(part.strip() for part in text.split(sign))
    return text


def shape_of(words: Sequence[str], batch: int | None = None) -> Shape:
    """Read the one shape that the words say; raises ValueError where they say none or several."""
    shapes = shapes_of(words, batch)
    if len(shapes) != 1:
        raise ValueError(f"one shape was expected, got {len(shapes)}: {' '.join(words)}")
    return shapes[0]


def _threes(sizes: list[str]) -> list[str]:
    if len(sizes) % 3:
        raise ValueError(f"sizes come in threes, M N K, got {len(sizes)}; a shape is 512x512x512, or 512 for a cube")
    return ["x".join(sizes[start : start + 3]) for start in range(0, len(sizes), 3)]


def _batched(shape: Shape, batch: int | None) -> Shape:
    if batch is None:
        return shape
    if shape.batch not in {1, batch}:
        raise ValueError(f"the shape {shape} has a batch of {shape.batch}, and --batch is {batch}")
    return replace(shape, batch=batch)
