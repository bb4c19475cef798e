"""Shapes as a person types them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from app.client import Shape

_ONE = re.compile(r"(\d+)x(\d+)x(\d+)", re.IGNORECASE)


def shapes_of(words: Sequence[str], batch: int = 1) -> list[Shape]:
    """Read MxNxK words, M N K triples, or one size for a square; raises ValueError for anything else."""
    shapes: list[Shape] = []
    sizes: list[int] = []
    for word in words:
        if found := _ONE.fullmatch(word):
            shapes.append(Shape(*map(int, found.groups())))
        elif word.isdecimal():
            sizes.append(int(word))
        else:
            raise ValueError(f"a shape is MxNxK, or three sizes M N K, got {word!r}")
    if len(sizes) == 1:
        sizes *= 3
    if len(sizes) % 3:
        raise ValueError(f"sizes come in threes, M N K, got {len(sizes)} of them")
    shapes += [Shape(*sizes[start : start + 3]) for start in range(0, len(sizes), 3)]
    if any(min(shape.m, shape.n, shape.k) < 1 for shape in shapes):
        raise ValueError("a size is at least 1")
    return [replace(shape, batch=batch) for shape in shapes]
