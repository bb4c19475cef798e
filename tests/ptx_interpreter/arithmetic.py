"""Arithmetic on registers: whole numbers, floating point, comparisons, bits (PTX ISA, "Instruction Set").

A float32 FMA is rounded twice, to float64 and then to float32: the same for integers, and for others but once in some
hundred million times. Approximations (ex2, rcp and the like) are the nearest float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tests.ptx_interpreter.numbers import FLOATS, HALVES, numbers, rounded
from tests.ptx_interpreter.program import TYPES, Array
from tests.ptx_interpreter.registers import Registers

COMPARE: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
OF_FLOATS: Final = BINARY | {"min": np.fmin, "max": np.fmax, "div": np.divide}
UNARY: Final[dict[str, Callable[[Array], Array]]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "rcp": np.reciprocal, "ex2": np.exp2, "lg2": np.log2,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
_LONGEST: Final = 8
WIDER: Final = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
MODES: Final = frozenset({"rn", "rz", "rm", "rp"})


def mode_of(rest: tuple[str, ...]) -> str:
    """How a result is rounded."""
    return next((word for word in rest if word in MODES or word == "rna"), "rn")


class Arithmetic(Registers):
    """Instructions that read and write registers and nothing else."""

    def compute(self, name: str, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """What has no method of its own: an operator of one or two operands."""
        assert name in {*OF_FLOATS, *UNARY, "rem"}, f"an instruction that is not known here: {name}.{'.'.join(rest)}"
        kind = rest[-1]
        if kind in FLOATS or kind in HALVES:
            self._float(name, rest, operands)
        elif name in UNARY:
            self.put(operands[0], UNARY[name](self.value(operands[1], kind)))
        else:
            x, y = (self.value(operand, kind) for operand in operands[1:3])
            self.put(operands[0], self._whole(name, rest, x, y))

    def _whole(self, name: str, rest: tuple[str, ...], x: Array, y: Array) -> Array:
        if name == "mul" and rest[0] == "hi" and x.itemsize == _LONGEST:  # NumPy has no wider integer
            high = [(int(one) * int(other)) >> 64 for one, other in zip(*np.broadcast_arrays(x, y), strict=True)]
            return np.array(high, x.dtype)
        if name == "mul" and rest[0] in {"wide", "hi"}:
            wide = np.dtype(TYPES[WIDER[rest[-1]]])
            product = x.astype(wide) * y.astype(wide)
            return product if rest[0] == "wide" else np.right_shift(product, 8 * x.itemsize).astype(x.dtype)
        if name in {"div", "rem"}:
            assert (y[self.mask] != 0).all(), "a division by zero"
            y = np.where(y == 0, np.ones_like(y), y)
            rest_of = np.fmod(x, y)  # with the sign of x, as quotients are towards zero
            return rest_of if name == "rem" else (x - rest_of) // y
        return BINARY[name](x, y)

    def _floats(self, operand: str, kind: str) -> Array:
        """Numbers, a column for each half of a packed pair."""
        if kind in HALVES:
            return numbers(self.value(operand, "b32").view(np.uint16), HALVES[kind]).reshape(-1, 2)
        return numbers(self.value(operand, kind), kind)

    def _round(self, target: str, value: Array, rest: tuple[str, ...]) -> None:
        kind = rest[-1]
        if "relu" in rest:
            value = np.maximum(value, 0)
        if "sat" in rest:
            value = np.where(np.isnan(value), 0, np.clip(value, 0, 1))
        found = rounded(value, HALVES.get(kind, kind), mode_of(rest))
        self.put(target, np.ascontiguousarray(found).view(np.uint32).reshape(-1) if kind in HALVES else found)

    def _float(self, name: str, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        given = [self._floats(operand, rest[-1]) for operand in operands[1:]]
        if name in UNARY:
            self._round(operands[0], UNARY[name](given[0]), rest)
            return
        if rest[-1] != "f64" and (rest[-1] != "f32" or mode_of(rest) != "rn"):
            given = [each.astype(np.float64) for each in given]
        self._round(operands[0], OF_FLOATS[name](*given), rest)

    def do_fma(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if rest == ("rn", "f32"):
            one, two, three = (self.value(operand, "f32") for operand in operands[1:])
            self.put(operands[0], (one.astype(np.float64) * two + three).astype(np.float32))
            return
        x, y, z = (self._floats(operand, rest[-1]).astype(np.float64) for operand in operands[1:])
        if rest[-1] == "f64":
            product = x * y
            whole = (product == np.trunc(product)) & (np.abs(product) < 2.0**53)
            assert (whole | ~np.isfinite(product) | (x == 1))[self.mask].all(), "a product that would be rounded"
        self._round(operands[0], x * y + z, rest)

    def do_mad(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if rest[-1] in FLOATS:
            self.do_fma(rest, operands)
            return
        x, y = (self.value(operand, rest[-1]) for operand in operands[1:3])
        kind = WIDER[rest[-1]] if rest[0] == "wide" else rest[-1]
        self.put(operands[0], self._whole("mul", rest, x, y) + self.value(operands[3], kind))

    def do_setp(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        found = self._compared(rest, operands)
        target, _, other = operands[0].partition("|")
        if len(rest) > 2 and rest[1] in {"and", "or", "xor"}:
            also = self._predicate(operands[3])
            self.put(target, BINARY[rest[1]](found, also))
            found = BINARY[rest[1]](~found, also)
        else:
            self.put(target, found)
            found = ~found
        if other:
            self.put(other, found)

    def do_set(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        found = self._compared((rest[0], rest[-1]), operands)
        one = np.float32(1) if rest[-2] == "f32" else np.uint32(0xFFFFFFFF)
        self.put(operands[0], np.where(found, one, one.dtype.type(0)))

    def _predicate(self, operand: str) -> Array:
        return ~self.value(operand[1:], "pred") if operand.startswith("!") else self.value(operand, "pred")

    def _compared(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> Array:
        kind, how = rest[-1], rest[0]
        if kind not in FLOATS:
            return COMPARE[how](*(self.value(operand, kind) for operand in operands[1:3]))
        x, y = (self._floats(operand, kind) for operand in operands[1:3])
        unordered = np.isnan(x) | np.isnan(y)
        if how in {"num", "nan"}:
            return unordered if how == "nan" else ~unordered
        found = COMPARE[how.removesuffix("u") if how not in COMPARE else how](x, y)
        return found | unordered if how not in COMPARE else found & ~unordered

    def do_selp(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x, y = (self.value(operand, rest[-1]) for operand in operands[1:3])
        self.put(operands[0], np.where(self._predicate(operands[3]), x, y))

    def do_slct(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x, y = (self.value(operand, rest[-2]) for operand in operands[1:3])
        self.put(operands[0], np.where(self.value(operands[3], rest[-1]) >= 0, x, y))

    def do_testp(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x = self._floats(operands[1], rest[-1])
        small = (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)
        asked = {"finite": np.isfinite(x), "infinite": np.isinf(x), "number": ~np.isnan(x), "notanumber": np.isnan(x)}
        self.put(operands[0], (asked | {"subnormal": small, "normal": np.isfinite(x) & (x != 0) & ~small})[rest[0]])

    def do_copysign(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        sign, x = (self.value(operand, rest[-1]) for operand in operands[1:])
        self.put(operands[0], np.copysign(x, sign))
