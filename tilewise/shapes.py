"""Shapes and problems: what is multiplied, and the notations in which a caller may say it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import index
from typing import Final

MAX_SIZE: Final = 2**31 - 1  # of m, n, k and batch: the service's kernels index in 32 bits
_SHAPE: Final = re.compile(r"[0-9]+(?:\s*[x\u00d7]\s*[0-9]+){0,3}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of op(A)[m,k] x op(B)[k,n], for `batch` independent pairs."""

    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        sizes = f"{self.m}x{self.n}x{self.k}"
        return sizes if self.batch == 1 else f"{sizes} x {self.batch}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read 512 (a cube), 512x512x512 or 4096x16x4096x8 (a batch of 8), blanks allowed around each x.

        Raises ValueError if the text is no shape or a size is out of range.
        """
        sizes = [size.lstrip("0") or "0" for size in re.findall("[0-9]+", text)]
        if not _SHAPE.fullmatch(text.strip()) or len(sizes) == 2:  # noqa: PLR2004 - two sizes leave the third open
            raise ValueError(f"a shape is 512 (a cube), 512x512x512 (MxNxK) or 512x512x512x8 (a batch), got {text!r}")
        if not all(len(size) <= len(str(MAX_SIZE)) and 1 <= int(size) <= MAX_SIZE for size in sizes):
            raise ValueError(f"a size is at least 1 and at most {MAX_SIZE}, got {text!r}")
        return cls(*map(int, sizes * 3 if len(sizes) == 1 else sizes))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is computed: sizes, dtype, precision class and transpositions."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float32"
    precision: str = "strict"
    trans_a: bool = False
    trans_b: bool = False

    @property
    def shape(self) -> Shape:
        """The sizes alone."""
        return Shape(self.m, self.n, self.k, self.batch)

    def __str__(self) -> str:
        words = [str(self.shape), self.dtype]
        words += [self.precision] if self.precision != "strict" else []
        words += ["nt"[self.trans_a] + "nt"[self.trans_b]] if self.trans_a or self.trans_b else []
        return " ".join(words)


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
    """Make a Shape of m, n and k, or of what shape_of takes in m's place; raises ValueError if a batch is twice."""
    if (n is None) != (k is None):
        raise ValueError("a shape is m, n and k, or one text such as '512x512x512'")
    shape = shape_of(m) if n is None or k is None else Shape(index(m), n, k)  # type: ignore[arg-type]  # index refuses
    if batch is None:
        return shape
    if shape.batch not in {1, batch}:
        raise ValueError(f"{shape} has a batch of {shape.batch}, and batch is {batch}")
    return replace(shape, batch=batch)
