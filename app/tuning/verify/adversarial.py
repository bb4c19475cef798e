"""Adversarial operands and shapes, on which a kernel that passes on N(0,1) may fail, with their error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

import numpy as np

from app.dtypes import Array, numpy_dtype
from app.tuning.verify import emulation
from app.tuning.verify.tolerance import applied, expect, operands, review, unwritten
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config

Kind = Literal[
    "numbers",
    "zeros",
    "integers",
    "NaN and infinities",
    "cancellation",
    "wide exponents",
    "denormals",
    "near overflow",
]

_SPECIAL: Final[tuple[Kind, ...]] = ("zeros", "integers", "NaN and infinities")
_ORDINARY: Final = {"numbers", "zeros", "integers"}  # what no kernel may decline
_ELEMENTS: Final = 2**20  # of A, B and C together, in a neighbour of a large problem: tens of milliseconds on the host
_FLOPS: Final = 2**31
_SHARE: Final = 1e-3  # seconds at the device's peak that a neighbour takes at most
# Sizes lose whole multiples of these, so that rows stay as aligned as they were; a k that fits in a tile loses nothing.
_ALIGNED: Final = {"m": 16, "n": 16, "k": 128}
_TILES: Final = 3  # in each direction that are left at least
_MORE_THAN_STAGES: Final = 2  # k tiles of a split that are left at least: stages are used again
_BATCHES: Final = 3
_VECTOR: Final = 16  # bytes of the widest load: rows that are not whole ones are another class
_EXACT: Final = {"float64": 2**52, "float32": 2**24, "float16": 2**24, "bfloat16": 2**24}  # the accumulator's integers
_LARGEST: Final = 8  # exact in every dtype


@dataclass(frozen=True, slots=True)
class Case:
    """One adversarial launch: its kind of operands and its shape."""

    kind: Kind
    problem: Problem

    @property
    def name(self) -> str:
        """Its name in a rejection, such as integers of 1x65x47x81 (batch first)."""
        problem = self.problem
        return f"{self.kind} of {problem.batch}x{problem.m}x{problem.n}x{problem.k}"


def cases(
    config: Config,
    problem: Problem,
    device: Device,
    legal: Callable[[Problem], bool] = lambda _: True,
    computes: Callable[[Problem], bool] = lambda _: True,
) -> Iterator[Case]:
    """Neighbours of the shape with normal numbers; the shape itself and an odd one with each kind of operands.

    An emulated problem has more kinds, with a bound for each element. Neighbours have m, n or k one less or more; those
    of a large problem are reduced by whole tiles until they take milliseconds: first in the sizes that equal
    the problem's, then in all. If the config is not `legal` on one, its rows are aligned as the problem's are, by up to
    16 bytes, or what it has more than the problem it has less, or both. Where none of these is legal it is the aligned
    one all the same, or the one with less where the config does not compute the other (`computes`: a tile that is to
    hold all of k): a binary has to be right on any size of its class that it computes, also where others are faster.
    """

    def cut(shape: Problem) -> Problem:
        smaller = _mirrored(shape, problem)
        tried = (shape, _alike(shape, problem), smaller, _alike(smaller, problem))
        found = [_cut(each, problem, config, device) for each in tried]
        right = [each for each in found if computes(each)]
        return next(filter(legal, right), found[1] if found[1] in right else right[-1])

    around = [_sized(problem, {name: size}) for name in "mnk" for size in _beside(getattr(problem, name))]
    odd = replace(problem, m=problem.m + 1, n=max(1, problem.n - 1), k=problem.k + 3)
    for neighbour in (*around, odd):
        yield Case("numbers", cut(neighbour))
    for shape in (problem, odd):
        for kind in (*_SPECIAL, *(emulation.HOSTILE if problem.precision == "emulated" else ())):
            yield Case(cast("Kind", kind), cut(shape))


def draw(case: Case, seed: int) -> tuple[Array, Array]:
    """A and B of a case, as stored: [batch, rows, columns], C-contiguous, of the problem's dtype."""
    problem = case.problem
    if case.kind == "zeros":
        return _zeros(problem, problem.a_shape), _zeros(problem, problem.b_shape)
    if case.kind == "integers":
        generator = np.random.default_rng(seed)
        return _integers(problem, problem.a_shape, generator), _integers(problem, problem.b_shape, generator)
    a, b = operands(problem, seed)
    if case.kind == "NaN and infinities":
        _inject(problem, a, b, np.random.default_rng(seed))
    elif case.kind in emulation.HOSTILE:
        emulation.inject(case.kind, *applied(problem, a, b), seed)
    return a, b


def declined(case: Case, verdict: int) -> str | None:
    """Say why a kernel was wrong to decline a case; None: it may."""
    return emulation.refusal(verdict) if case.kind in _ORDINARY else None


def finite(operand: Array) -> Array:
    """The operand with zeros for NaN and infinities, as input of the float64 reference."""
    return np.where(np.isfinite(operand), operand, operand.dtype.type(0))


def finite_operands(case: Case, a: Array, b: Array) -> tuple[Array, Array]:
    """Both operands with zeros for NaN and infinities; themselves where the case has none."""
    return (finite(a), finite(b)) if case.kind == "NaN and infinities" else (a, b)


def judge(case: Case, a: Array, b: Array, reference: Array, c: Array) -> str | None:
    """Say why C, poisoned before, is wrong; None: it is right. `reference` is the product of the finite operands."""
    problem = case.problem
    if case.kind == "numbers":
        return review(problem, expect(problem, a, b, reference), c).reason
    if case.kind == "NaN and infinities":
        return _propagated(problem, a, b, reference, c)
    if case.kind in emulation.HOSTILE:
        return unwritten(problem, c) or emulation.excess(*applied(problem, a, b), reference, c)
    with np.errstate(over="ignore"):  # what a short dtype cannot hold is an infinity in both
        expected = reference.reshape(c.shape).astype(numpy_dtype(problem.dtype))
    off = int(np.count_nonzero(c != expected))
    return unwritten(problem, c) or (f"{off} of {c.size} elements are not exact" if off else None)


def _alike(shape: Problem, own: Problem) -> Problem:
    """The nearest shape, away from the own, whose rows are whole 16 bytes where its own are and only there."""
    step = _VECTOR // own.itemsize

    def moved(size: int, base: int) -> int:
        if base % step:
            return size + (size % step == 0) * (1 if size > base else -1)
        return max(step, size // step * step if size < base else -(-size // step) * step)

    return _sized(shape, {name: moved(getattr(shape, name), getattr(own, name)) for name in "mnk"})


def _mirrored(shape: Problem, own: Problem) -> Problem:
    """The shape with as much less than its own as it has more."""
    sizes = {name: (getattr(shape, name), getattr(own, name)) for name in "mnk"}
    return _sized(shape, {name: max(1, 2 * base - size) for name, (size, base) in sizes.items() if size > base})


def _beside(size: int) -> tuple[int, ...]:
    return (size - 1, size + 1) if size > 1 else (size + 1,)


def _cut(shape: Problem, own: Problem, config: Config, device: Device) -> Problem:
    """A shape reduced until it is cheap: first in the sizes that equal the problem's, then in all."""
    shape = replace(shape, batch=min(shape.batch, _BATCHES))
    small = {name: _shrunk(name, getattr(shape, name), config) for name in "mnk"}
    kept = {name: size for name, size in small.items() if getattr(shape, name) == getattr(own, name)}
    for sizes in ({}, kept, small):
        cut = _sized(shape, sizes)
        if _is_cheap(cut, device):
            break
    return cut


def _sized(problem: Problem, sizes: Mapping[str, int]) -> Problem:
    m, n, k = (sizes.get(name, getattr(problem, name)) for name in "mnk")
    return replace(problem, m=m, n=n, k=k)


def _is_cheap(problem: Problem, device: Device) -> bool:
    elements = problem.bytes // problem.itemsize
    return elements <= _ELEMENTS and problem.flops <= min(_FLOPS, _SHARE * device.limits.peak)


def _shrunk(name: str, size: int, config: Config) -> int:
    """The size less whole tiles, so that the last ones are filled as before; unchanged if it is small.

    Of k it is a tile of every split, and as many are left as have stages used again.
    """
    tile, count = config.get(f"B{name.upper()}", 16), _TILES
    if name == "k":
        count = max(count, config.get("STAGES", 1) + _MORE_THAN_STAGES)
        tile = max(tile * config.get("SPLIT_K", 1), 2 * config.get("PROMOTE_K", 0))
    step = math.lcm(tile, _ALIGNED[name])
    least = -(-count * tile // step) * step
    return min(size, least + size % step)


def _zeros(problem: Problem, shape: tuple[int, int]) -> Array:
    return np.zeros((problem.batch, *shape), numpy_dtype(problem.dtype))


def _integers(problem: Problem, shape: tuple[int, int], generator: np.random.Generator) -> Array:
    """Integers so small that every partial sum is exact, in whatever order."""
    most = max(1, min(_LARGEST, math.isqrt(_EXACT[problem.dtype] // problem.k)))
    drawn = generator.integers(-most, most + 1, (problem.batch, *shape), np.int8)
    return drawn.astype(numpy_dtype(problem.dtype))


def _inject(problem: Problem, a: Array, b: Array, generator: np.random.Generator) -> None:
    """Put an infinity and a NaN into the last batch of both: at the ends, where tiles are ragged, and anywhere."""
    left, right = applied(problem, a, b)

    def somewhere(size: int) -> int:
        return int(generator.integers(size))

    m, n, k = problem.m, problem.n, problem.k
    if m > 1:
        left[-1, somewhere(m - 1), somewhere(k)] = np.nan
    if n > 1:
        right[-1, somewhere(k), somewhere(n - 1)] = np.nan
    left[-1, m - 1, k - 1] = np.inf
    right[-1, somewhere(k), n - 1] = -np.inf


def _propagated(problem: Problem, a: Array, b: Array, reference: Array, c: Array) -> str | None:
    """NaN and infinities must reach the elements that they reach in IEEE arithmetic, and no others."""
    expected = nonfinite_product(problem, a, b, reference.reshape(c.shape))
    if problem.precision == "emulated":  # a split infinity is a NaN: what such kernels are not asked for
        same = np.isfinite(c) == np.isfinite(expected)
    else:
        same = np.isfinite(c) & np.isfinite(expected) | (c == expected) | np.isnan(c) & np.isnan(expected)
    if not same.all():
        more = int(np.count_nonzero(~same & np.isfinite(expected)))
        fewer = int(np.count_nonzero(~same)) - more
        told = f"NaN or infinity: {more} elements that should be finite are not, {fewer} others are off"
        return unwritten(problem, c) or told
    rest = np.isfinite(expected)
    known = expect(problem, finite(a), finite(b), np.where(rest, expected, 0.0))
    return review(problem, known, np.where(rest, c, c.dtype.type(0))).reason


def nonfinite_product(problem: Problem, a: Array, b: Array, reference: Array) -> Array:
    """The product of operands with NaN and infinities: the finite part, and every term with one of them."""
    left, right = (one.astype(np.float64) for one in applied(problem, a, b))
    whole = reference.copy()
    with np.errstate(invalid="ignore"):  # infinity less infinity is a NaN, as it is to be
        for at, i, p in np.argwhere(~np.isfinite(left)):
            whole[at, i, :] += left[at, i, p] * right[at, p, :]
        plain = np.isfinite(left)  # a term of two of them has been added
        for at, p, j in np.argwhere(~np.isfinite(right)):
            rows = plain[at, :, p]
            whole[at, rows, j] += left[at, rows, p] * right[at, p, j]
    return whole
