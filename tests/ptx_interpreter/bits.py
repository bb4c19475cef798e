"""Bits of registers: shifts, fields, bytes, conversions between types (PTX ISA, "Logic and Shift", "Data Movement")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ptx_interpreter.arithmetic import Arithmetic, mode_of
from tests.ptx_interpreter.numbers import FLOATS, HALVES, numbers, rounded, whole
from tests.ptx_interpreter.program import TYPES, Array, parts
from tests.ptx_interpreter.registers import LOCAL_WINDOW, PARAMETERS, SHARED_WINDOW

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": 0, "global": 0}


class Bits(Arithmetic):
    """Instructions on the bits of registers."""

    def do_mov(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        target, origin = operands
        if origin.startswith("{"):
            names = parts(origin)
            kind = f"b{int(rest[-1][1:]) // len(names)}"
            whole_one = np.stack([self.value(name, kind) for name in names], 1)
            self.put(target, whole_one.reshape(-1).view(TYPES[rest[-1]]))
        elif target.startswith("{"):
            names = parts(target)
            kind = f"b{int(rest[-1][1:]) // len(names)}"
            pieces: Array = self.value(origin, rest[-1]).view(TYPES[kind]).reshape(-1, len(names))
            for name, piece in zip(names, pieces.T, strict=True):
                self.put(name, np.ascontiguousarray(piece))
        else:
            self.put(target, self.value(origin, rest[-1]))

    def do_cvta(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        space = next(word for word in rest if word.partition("::")[0] in WINDOWS).partition("::")[0]
        window = np.uint64(WINDOWS[space])
        x = self.value(operands[1], "u64")
        self.put(operands[0], x - window if rest[0] == "to" else x + window)

    def do_isspacep(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x = self.value(operands[1], "u64").astype(np.int64)
        first = WINDOWS[rest[0].partition("::")[0]]
        near = (x >= SHARED_WINDOW) & (x < PARAMETERS) if first == 0 else (x >= first) & (x < 2 * first)
        self.put(operands[0], ~near if first == 0 else near)

    def do_cvt(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        to, origin = rest[-2:]
        if to in HALVES:
            upper, lower = (self._converted(operand, HALVES[to], origin, rest) for operand in operands[1:])
            self.put(operands[0], np.stack([lower, upper], 1).view(np.uint32).reshape(-1))
        else:
            self.put(operands[0], self._converted(operands[1], to, origin, rest))

    def _converted(self, operand: str, to: str, origin: str, rest: tuple[str, ...]) -> Array:
        x = self.value(operand, origin)
        if origin in FLOATS:
            x = numbers(x, origin)
            turned = next((word for word in rest if word in {"rni", "rzi", "rmi", "rpi"}), "")
            if to not in FLOATS:
                return whole(x, to, turned)
            if turned:
                return rounded({"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[turned](x), to)
        if to not in FLOATS:
            assert "sat" not in rest, "a conversion that stops at the ends"
            return x.astype(TYPES[to])
        if origin not in FLOATS:
            x = x.astype(np.float64)  # whole numbers past 2^53 are not converted here
            assert (np.abs(x) <= 2.0**53)[self.mask].all(), "a number too large to be converted"
        if "relu" in rest:
            x = np.maximum(x, 0)
        found = rounded(x, to, mode_of(rest))
        return self._finite(found, to) if "satfinite" in rest else found

    @staticmethod
    def _finite(found: Array, to: str) -> Array:
        bits = found.view(np.uint16) if to != "tf32" else found
        top = {"f16": 0x7BFF, "bf16": 0x7F7F, "tf32": 0x7F7FE000}[to]
        sign = bits & bits.dtype.type(1 << (8 * bits.itemsize - 1))
        return np.where(np.isinf(numbers(bits, to)), sign | bits.dtype.type(top), bits)

    def do_not(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.put(operands[0], ~self.value(operands[1], rest[-1]))

    def do_shl(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x = self.value(operands[1], rest[-1])
        self.put(operands[0], x << self.value(operands[2], "u32").astype(x.dtype))

    def do_shr(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x = self.value(operands[1], rest[-1])
        self.put(operands[0], x >> self.value(operands[2], "u32").astype(x.dtype))

    def do_shf(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        low, high = (self.value(operand, "u32").astype(np.uint64) for operand in operands[1:3])
        by, pair = self.value(operands[3], "u32").astype(np.uint64), low | high << np.uint64(32)
        by = by & np.uint64(31) if rest[1] == "wrap" else np.minimum(by, np.uint64(32))
        shifted = pair << by >> np.uint64(32) if rest[0] == "l" else pair >> by
        self.put(operands[0], shifted.astype(np.uint32))

    def do_bfi(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        field, into = (self.value(operand, rest[-1]) for operand in operands[1:3])
        mask, at = self._field(operands[3:], into.dtype.type)
        self.put(operands[0], (into & ~(mask << at)) | ((field & mask) << at))

    def do_bfe(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x = self.value(operands[1], rest[-1])
        mask, at = self._field(operands[2:], x.dtype.type)
        found = x >> at & mask
        if rest[-1].startswith("s"):
            top = mask ^ mask >> x.dtype.type(1) & mask
            found = (found ^ top) - top
        self.put(operands[0], found)

    def _field(self, operands: tuple[str, ...], of: type[np.integer[Any]]) -> tuple[Array, Array]:
        at, length = (self.value(operand, "u32") & np.uint32(255) for operand in operands)
        ones = (np.uint64(1) << np.minimum(length, 63).astype(np.uint64)) - np.uint64(1)
        return ones.astype(of), at.astype(of)

    def do_prmt(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """Four bytes of eight, as four digits choose them, or that many of a byte's sign."""
        assert rest == ("b32",), "a mode that is not asked for here"
        eight = np.stack([self.value(operand, "b32") for operand in operands[1:3]], 1).view(np.uint8)
        chosen = self.value(operands[3], "u32")[:, None] >> (np.arange(4, dtype=np.uint32) * np.uint32(4))
        taken = np.take_along_axis(eight, (chosen & np.uint32(7)).astype(np.int64), 1)
        signs = np.where(taken >= 128, np.uint8(255), np.uint8(0))
        found = np.where(chosen & np.uint32(8), signs, taken)
        self.put(operands[0], np.ascontiguousarray(found).view(np.uint32).reshape(-1))

    def do_lop3(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """Any function of three bits: bit 4 a + 2 b + c of its table."""
        given, table = [self.value(operand, rest[-1]) for operand in operands[1:4]], int(operands[4], 0)
        found = np.zeros_like(given[0])
        for row in range(8):
            if table >> row & 1:
                one, two, three = (x if row >> place & 1 else ~x for place, x in zip((2, 1, 0), given, strict=True))
                found |= one & two & three
        self.put(operands[0], found)

    def do_popc(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.put(operands[0], self._bits(operands[1], rest).sum(1).astype(np.uint32))

    def do_clz(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.put(operands[0], np.cumprod(1 - self._bits(operands[1], rest)[:, ::-1], 1).sum(1).astype(np.uint32))

    def do_bfind(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        bits = self._bits(operands[1], rest)
        zeros = np.cumprod(1 - bits[:, ::-1], 1).sum(1)
        self.put(operands[0], np.where(zeros == bits.shape[1], -1, bits.shape[1] - 1 - zeros).astype(np.uint32))

    def do_brev(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        bits = np.packbits(self._bits(operands[1], rest)[:, ::-1].astype(np.uint8), axis=1, bitorder="little")
        self.put(operands[0], bits.view(TYPES[rest[-1]]).reshape(-1))

    def _bits(self, operand: str, rest: tuple[str, ...]) -> Array:
        x = self.value(operand, rest[-1])
        return np.unpackbits(x.view(np.uint8).reshape(self.threads, -1), axis=1, bitorder="little").astype(np.int64)
