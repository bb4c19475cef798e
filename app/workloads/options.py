"""ReadOptions: what a file may leave open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a file may leave open: element type and precision of its products, and the size of free dimensions.

    `precision` is of float32 products of which the file does not tell it; `free` is the size of a model's dimensions
    that have a name in place of a number.
    """

    dtype: str = "float32"
    precision: str = "strict"
    free: int | None = None
