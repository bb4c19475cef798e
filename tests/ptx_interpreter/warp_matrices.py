"""Matrices that a warp has in its registers: ldmatrix, stmatrix, movmatrix, mma and wmma (PTX ISA, "Warp Level").

Products are exact and sums float64 that is rounded once an instruction, to nearest: better than tensor cores, which cut
off. A Block's `sums` can be another model, c + a b of float32 arrays. Where elements of wmma's fragments are is not
specified: here they follow one another line by line, from a warp's last lane to its first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np

from tests.ptx_interpreter.memory import space_of
from tests.ptx_interpreter.numbers import numbers, rounded
from tests.ptx_interpreter.program import TYPES, WARP, Array, parts
from tests.ptx_interpreter.warps import Warps
from tests.support.kernels.tensor_core_sums import Core, added

Sums = Callable[[Array, Array, Array, str], Array]
KINDS: Final = frozenset({"f16", "bf16", "tf32", "f32", "f64"})
LANES: Final = np.arange(WARP)


def exact_sums(c: Array, a: Array, b: Array, _: str) -> Array:
    """C + A B in float64: [..., m, n], [..., m, k], [..., k, n], and the type of A and B."""
    return c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)


def cut_sums(core: Core) -> Sums:
    """Sums of float16 as a generation of tensor cores cuts them off (tests/support/kernels/tensor_core_sums.py)."""

    def total(c: Array, a: Array, b: Array, kind: str) -> Array:
        assert kind == "f16", "how these are cut off is not known here"
        wide = [each.astype(np.float64).reshape(-1, *each.shape[-2:]) for each in (c, a, b)]
        return np.stack([added(core, *each) for each in zip(*wide, strict=True)]).reshape(c.shape)

    return total


@cache
def places(matrix: str, kind: str, m: int, k: int) -> tuple[Array, Array]:
    """Rows and columns of the elements that a warp's fragment of "a", "b" or "c" has: [elements of a thread, 32].

    m and k are the rows and columns of the matrix; PTX ISA, "Matrix Fragments for mma.m16n8k16" and its like.
    """
    group, member = LANES // 4, LANES % 4
    # Elements of 16 bits along k are in pairs; so are the sums, along n.
    run = 2 if matrix == "c" or kind in {"f16", "bf16"} else 1
    count = m * k // WARP
    rows, columns = np.zeros((count, WARP), np.int64), np.zeros((count, WARP), np.int64)
    for i in range(count):
        pair, odd = divmod(i, run)
        if matrix == "b":  # m is k, k is n
            rows[i], columns[i] = member * run + odd + pair * 4 * run, group
        else:
            rows[i] = group + pair % (m // 8) * 8
            columns[i] = member * run + odd + pair // (m // 8) * 4 * run
    return rows, columns


class Tensor(Warps):
    """Instructions of a warp's tensor cores, and what brings their operands."""

    sums: Sums

    def elements(self, names: Sequence[str], kind: str, packed: bool = True) -> Array:
        """What all threads have in a list of registers: [elements of a thread, threads], as numbers."""
        if packed and kind in {"f16", "bf16"}:
            held = np.stack([self.value(name, "b32") for name in names], 1).view(np.uint16)
            return numbers(held, kind).T
        return np.stack([numbers(self.value(name, "b32" if kind == "tf32" else kind), kind) for name in names])

    def put_elements(self, names: Sequence[str], kind: str, values: Array) -> None:
        """The inverse: [elements of a thread, threads]."""
        if kind in {"f16", "bf16"}:
            bits = np.ascontiguousarray(rounded(values, kind).view(np.uint16).T).view(np.uint32)
            values, kind = bits.T, "b32"
        else:
            values = rounded(values, kind)
        for name, each in zip(names, values, strict=True):
            self.put(name, np.ascontiguousarray(each))

    def _gathered(self, operand: str, matrix: str, kind: str, m: int, k: int) -> Array:
        """A matrix of each warp: [warps, m, k]."""
        rows, columns = places(matrix, kind, m, k)
        found = np.zeros((self.threads // WARP, m, k), np.float64 if kind == "f64" else np.float32)
        held = self.elements(parts(operand), kind)
        found[:, rows, columns] = held.reshape(len(rows), -1, WARP).swapaxes(0, 1)
        return found

    def do_mma(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """A warp's C + A B."""
        self.warps()
        found = next(filter(None, (re.fullmatch(r"m(\d+)n(\d+)k(\d+)", word) for word in rest)))
        m, n, k = map(int, found.groups())
        d_kind, a_kind, b_kind, c_kind = [word for word in rest if word in KINDS]
        assert rest[3:5] == ("row", "col"), "an order of A or B that there is not"
        a = self._gathered(operands[1], "a", a_kind, m, k)
        b = self._gathered(operands[2], "b", b_kind, k, n)
        c = self._gathered(operands[3], "c", c_kind, m, n)
        total = self.sums(c, a, b, a_kind)
        rows, columns = places("c", d_kind, m, n)
        self.put_elements(parts(operands[0]), d_kind, total[:, rows, columns].swapaxes(0, 1).reshape(len(rows), -1))

    def _matrices(self, rest: tuple[str, ...], operand: str) -> tuple[int, Array, Array]:
        """How many 8 x 8 matrices, and the threads that say where their rows are, with these places; warp by warp."""
        count = int(next(word for word in rest if re.fullmatch(r"x[124]", word))[1:])
        assert "m8n8" in rest, "matrices of another shape"
        threads = (self.warps()[:, None] * WARP + np.arange(8 * count)).reshape(-1)
        first = self.address(operand)[threads]
        assert (first % 16 == 0).all(), "an access to shared memory that is not aligned"
        self.shared.meet(threads, first, 16)
        return count, threads, self.shared.places(threads, first)

    def do_ldmatrix(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        count, threads, first = self._matrices(rest, operands[1])
        rows = self.shared.load(threads, first, 16).view(np.uint16).reshape(-1, count, 8, 8)
        if "trans" in rest:
            rows = rows.swapaxes(2, 3)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, count, WARP)
        for i, name in enumerate(parts(operands[0])):
            whole = np.zeros((self.threads // WARP, WARP), np.uint32)
            whole[self.warps()] = words[:, i]
            self.put(name, whole.reshape(-1))

    def do_stmatrix(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        count, threads, first = self._matrices(rest, operands[0])
        held = np.stack([self.value(name, "b32").reshape(-1, WARP)[self.warps()] for name in parts(operands[1])], 1)
        rows = np.ascontiguousarray(held).view(np.uint16).reshape(-1, count, 8, 8)
        if "trans" in rest:
            rows = rows.swapaxes(2, 3)
        self.shared.store(threads, first, np.ascontiguousarray(rows).view(np.uint8).reshape(-1, 16))

    def do_movmatrix(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.warps()
        held = self.value(operands[1], "b32").view(np.uint16).reshape(-1, 8, 8)
        self.put(operands[0], np.ascontiguousarray(held.swapaxes(1, 2)).view(np.uint32).reshape(-1))

    def do_wmma(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.warps()
        shape = next(filter(None, (re.fullmatch(r"m(\d+)n(\d+)k(\d+)", word) for word in rest)))
        m, n, k = map(int, shape.groups())
        if rest[0] == "mma":
            self._multiply(rest, operands, m, n, k)
            return
        side = {"a": (m, k), "b": (k, n)}.get(rest[1], (m, n))
        order = next(word for word in rest if word in {"row", "col"})
        first = self._lines(rest, operands, side, order)
        if rest[0] == "load":
            self._load(rest, operands[0], first, side, order)
        else:
            self._store(rest, operands[1], first, side, order)

    def _lines(self, rest: tuple[str, ...], operands: tuple[str, ...], side: tuple[int, int], order: str) -> Array:
        """Where each line of each warp's matrix begins: [warps, lines]."""
        pointer, size = operands[1 if rest[0] == "load" else 0], np.dtype(TYPES[rest[-1]]).itemsize
        given = operands[2:]
        run = side[1] if order == "row" else side[0]
        pitch = self.value(given[0], "u32").astype(np.int64) if given else np.full(self.threads, run)
        first = self.address(pointer)
        for each in (pitch, first):
            rows = each.reshape(-1, WARP)[self.warps()]
            assert (rows == rows[:, :1]).all(), "threads of a warp that mean several matrices"
        assert (first[self.mask] % 32 == 0).all(), "a matrix that does not begin at 32 bytes"
        assert (pitch[self.mask] * size % 16 == 0).all(), "lines of a matrix that do not begin at 16 bytes"
        lines = np.arange(side[0] if order == "row" else side[1])
        at = self.warps() * WARP
        found: Array = first[at, None] + lines * pitch[at, None] * size
        return found

    def _load(self, rest: tuple[str, ...], target: str, first: Array, side: tuple[int, int], order: str) -> None:
        kind, names = rest[-1], parts(target)
        dtype = np.dtype(TYPES[kind])
        at, threads = self._packs(first, self._run(side, order) * dtype.itemsize)
        if space_of(rest) == "shared":
            content = self.shared.load(threads, self.shared.places(threads, at), 16)
        else:
            content = self.read(at, 16)
        found = np.ascontiguousarray(content).view(dtype).reshape(len(first), first.shape[1], -1)
        if order == "col":
            found = found.swapaxes(1, 2)
        dealt = self._dealt(np.ascontiguousarray(found).reshape(len(first), -1), len(names), dtype.itemsize)
        for i, name in enumerate(names):
            whole = np.zeros((self.threads // WARP, WARP), dealt.dtype)
            whole[self.warps()] = dealt[:, :, i]
            self.put(name, whole.reshape(-1))

    @staticmethod
    def _run(side: tuple[int, int], order: str) -> int:
        return side[1] if order == "row" else side[0]

    @staticmethod
    def _dealt(elements: Array, registers: int, size: int) -> Array:
        """Registers of each thread, more than once round where there are more than elements: [warps, 32, registers]."""
        packed = elements.reshape(len(elements), WARP, -1)[:, ::-1]
        words = np.ascontiguousarray(packed).view(np.uint32 if size < 8 else np.uint64)
        return np.tile(words, (1, 1, registers // words.shape[2]))

    def _fragment(self, operand: str, kind: str, side: tuple[int, int]) -> Array:
        """A matrix of each warp, as bits: [warps, rows, columns]."""
        width = "b64" if kind == "f64" else "b32"
        words = np.stack([self.value(name, width) for name in parts(operand)], 1)
        words = words.reshape(self.threads // WARP, WARP, -1)[:, ::-1]
        used = side[0] * side[1] * np.dtype(TYPES[kind]).itemsize // (WARP * words.itemsize)
        return np.ascontiguousarray(words[:, :, :used]).view(TYPES[kind]).reshape(-1, *side)

    def _store(self, rest: tuple[str, ...], origin: str, first: Array, side: tuple[int, int], order: str) -> None:
        found = self._fragment(origin, rest[-1], side)[self.warps()]
        if order == "col":
            found = found.swapaxes(1, 2)
        content = np.ascontiguousarray(found).view(np.uint8).reshape(-1, 16)
        at, threads = self._packs(first, self._run(side, order) * np.dtype(TYPES[rest[-1]]).itemsize)
        if space_of(rest) == "shared":
            self.shared.store(threads, self.shared.places(threads, at), content)
        else:
            self.memory[at[:, None] + np.arange(16)] = content

    def _packs(self, first: Array, run: int) -> tuple[Array, Array]:
        """Lines in pieces of 16 bytes, and the thread whom each warp's are told by."""
        at = (first[:, :, None] + np.arange(0, run, 16)).reshape(-1)
        return at, np.repeat(self.warps() * WARP, len(at) // len(first))

    def _multiply(self, rest: tuple[str, ...], operands: tuple[str, ...], m: int, n: int, k: int) -> None:
        named = [word for word in rest if word in KINDS]
        d, c = named[0], named[-1]
        inner = named[1] if len(named) == 4 else "f16"
        a = numbers(self._fragment(operands[1], inner, (m, k)), inner)
        b = numbers(self._fragment(operands[2], inner, (k, n)), inner)
        total = rounded(self.sums(numbers(self._fragment(operands[3], c, (m, n)), c), a, b, inner), d)
        dealt = self._dealt(
            np.ascontiguousarray(total).reshape(len(total), -1), len(parts(operands[0])), total.itemsize
        )
        for i, name in enumerate(parts(operands[0])):
            self.put(name, np.ascontiguousarray(dealt[:, :, i]).reshape(-1))
