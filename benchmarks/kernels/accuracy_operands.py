"""What accuracy.py multiplies: random operands, and those that are hard for arithmetic which splits or rescales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from app.dtypes import Array

SIDE = 256
DEPTHS = tuple(2**power for power in range(8, 15))
DEEP = 4096
Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Operands:
    """A [m, k] and B [k, n] in float32, by a name; `normal` where all elements are from N(0,1)."""

    name: str
    a: Array
    b: Array
    normal: bool = False


def cases(seed: int, side: int = SIDE, depths: tuple[int, ...] = DEPTHS, deep: int = DEEP) -> Iterator[Operands]:
    """All of them, each from a generator of its own."""
    for k in depths:
        generator = np.random.default_rng([seed, k])
        yield Operands(f"N(0,1), k {k}", _normal(generator, side, k), _normal(generator, k, side), normal=True)
    for number, (name, make) in enumerate(HARD.items()):
        yield Operands(name, *make(np.random.default_rng([seed, number, 1]), side, deep))


def _normal(generator: Generator, rows: int, columns: int) -> Array:
    return generator.standard_normal((rows, columns), dtype=np.float32)


def _pair(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    return _normal(generator, side, k), _normal(generator, k, side)


def _positive(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """Nothing cancels: every rounding of a sum that grows errs against a large one."""
    a, b = _pair(generator, side, k)
    return np.abs(a), np.abs(b)


def _cancelling(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """The second half of k takes away all but a millionth of what the first half adds."""
    a, b = _pair(generator, side, k // 2)
    rest = b * np.float32(1 + 1e-6)
    return np.concatenate([a, a], axis=1), np.concatenate([b, -rest])


def _scaled(generator: Generator, x: Array, exponents: int, axis: int | None) -> Array:
    """Elements, or whole lines along an axis, times powers of two up to 2^exponents either way."""
    shape = [1 if at == axis else size for at, size in enumerate(x.shape)]
    powers = generator.integers(-exponents, exponents + 1, shape)
    return np.asarray(np.ldexp(x, powers), np.float32)


def _apart(exponents: int) -> Callable[[Generator, int, int], tuple[Array, Array]]:
    """Elements beside each other have exponents that far apart."""

    def make(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
        a, b = _pair(generator, side, k)
        return _scaled(generator, a, exponents, None), _scaled(generator, b, exponents, None)

    return make


def _lines_apart(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """Rows of A have exponents far apart, and so have columns of B; within each they are alike."""
    a, b = _pair(generator, side, k)
    return _scaled(generator, a, 50, 1), _scaled(generator, b, 50, 0)


def _along_k(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """A grows along k by as much as B shrinks: every product is of ordinary size, no operand is."""
    a, b = _pair(generator, side, k)
    powers = generator.integers(-20, 21, (1, k))
    return np.ldexp(a, powers).astype(np.float32), np.ldexp(b, -powers.T).astype(np.float32)


def _denormal(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """A's elements are denormal, B's large enough that products are not."""
    a, b = _pair(generator, side, k)
    return np.ldexp(a, -130).astype(np.float32), np.ldexp(b, 100).astype(np.float32)


def _underflowing(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """The product is denormal, its operands are not."""
    a, b = _pair(generator, side, k)
    return np.ldexp(a, -70).astype(np.float32), np.ldexp(b, -70).astype(np.float32)


def _near_overflow(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """Elements of the product come within a few binary places of the largest float."""
    a, b = _pair(generator, side, k)
    room = 124 - int(np.log2(k)) // 2
    return np.ldexp(a, room // 2).astype(np.float32), np.ldexp(b, room - room // 2).astype(np.float32)


def _integers(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """Every partial sum is an integer that float32 has: nothing may be rounded."""
    a, b = (generator.integers(-30, 31, shape).astype(np.float32) for shape in ((side, k), (k, side)))
    return a, b


def _sparse(generator: Generator, side: int, k: int) -> tuple[Array, Array]:
    """Nine elements in ten are zero, and the last row of A and the first column of B wholly."""
    a, b = (np.where(generator.random(x.shape) < 0.1, x, np.float32(0)) for x in _pair(generator, side, k))
    a[-1], b[:, 0] = 0, 0
    return a, b


HARD: dict[str, Callable[[Generator, int, int], tuple[Array, Array]]] = {
    "nothing cancels": _positive,
    "all but a millionth cancels": _cancelling,
    "exponents 8 apart": _apart(4),
    "exponents 24 apart": _apart(12),
    "exponents 60 apart": _apart(30),
    "rows and columns 2^100 apart": _lines_apart,
    "exponents along k": _along_k,
    "denormal operands": _denormal,
    "denormal products": _underflowing,
    "near overflow": _near_overflow,
    "small integers": _integers,
    "nine in ten are zero": _sparse,
}
