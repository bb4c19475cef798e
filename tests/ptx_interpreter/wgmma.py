"""Products of a warpgroup, which go on while its threads do (PTX ISA, "Asynchronous Warpgroup Level Matrix").

What is multiplied is read at once here, and the sums are there at once; but until a wait_group says so nobody may read
or write the sums' registers, write the registers or the shared memory that are multiplied, and registers that were
written by other instructions need a wgmma.fence. A mov is the compiler's: it hands on what is known of a register.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from tests.ptx_interpreter.bulk_copies import Bulk, swizzled
from tests.ptx_interpreter.numbers import numbers, rounded
from tests.ptx_interpreter.program import TYPES, WARP, Array, parts
from tests.ptx_interpreter.warp_matrices import places

GROUP = 4 * WARP
ROWS = 64
SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}


@cache
def pieces(count: int, depth: int, crosswise: bool, span: int, along: int, lines: int) -> Array:
    """Where 16-byte pieces of a matrix are, before they are swizzled: [8 rows or columns of it, pieces].

    `count` is its side (m or n), `depth` bytes of k for each (crosswise: how much of k). PTX ISA, "Strides".
    """
    if not crosswise:  # k runs on in memory: a row is `depth` bytes
        row, piece = np.arange(count)[:, None], np.arange(depth // 16)[None]
        pitch, step = (span, 16) if span else (16, along)
        return row // 8 * lines + row % 8 * pitch + piece * step
    piece, k = np.arange(count // 8)[:, None], np.arange(depth)[None]
    if not span:
        return piece * lines + k // 8 * along + k % 8 * 16
    wide = span // 16
    return piece // wide * along + piece % wide * 16 + k // 8 * lines + k % 8 * span


@cache
def sums_at(n: int) -> tuple[Array, Array]:
    """Rows and columns of a warpgroup's sums: [registers, 128]."""
    i, lane = np.arange(n // 2)[:, None], np.arange(GROUP)[None]
    rows = lane // WARP * 16 + lane % WARP // 4 + i // 2 % 2 * 8
    return rows, i // 4 * 8 + lane % 4 * 2 + i % 2


class Hopper(Bulk):
    """Instructions of warpgroups."""

    def begin(self) -> None:
        super().begin()
        self.fenced, self.committed, self.completed = (np.zeros(self.threads, np.int32) for _ in range(3))
        self.under_way_since: dict[str, Array] = {}  # of each register of sums: which group's it is
        self.multiplied: dict[str, Array] = {}  # of each register of A
        self.written: dict[str, Array] = {}  # when other instructions wrote a register of either
        self.agents: dict[tuple[int, int], int] = {}
        self.sent_at: dict[tuple[int, int], int] = {}
        self.taken_in: dict[
            tuple[int, int], list[tuple[int, Array]]
        ] = {}  # what threads had read for a group's registers
        products = [one for one in self.program.code if one.rest[:1] == ("mma_async",)]
        self.tracked = {name for one in products for operand in one.operands[:2] for name in parts(operand)}

    def value(self, operand: str, kind: str) -> Array:
        if operand in self.under_way_since:
            late = self.under_way_since[operand] > self.completed
            assert not late[self.mask].any(), f"sums in {operand} are used before they were waited for"
        return super().value(operand, kind)

    def put(self, register: str, value: Array) -> None:
        if register in self.tracked:
            for known, what in ((self.multiplied, "multiplied"), (self.under_way_since, "added to")):
                if register in known:
                    late = known[register] > self.completed
                    assert not late[self.mask].any(), f"{register} is written while it is {what}"
            self._note(self.written, register, self.step)
        super().put(register, value)

    def _note(self, known: dict[str, Array], register: str, value: Array | int) -> None:
        before = known.get(register)
        if before is None:
            before = np.zeros(self.threads, np.int32)
        known[register] = np.where(self.mask, value, before).astype(np.int32)

    def do_mov(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        target, origin = operands
        if target.startswith("{") or origin.startswith("{") or not ({target, origin} & self.tracked):
            super().do_mov(rest, operands)
            return
        known, written = self.under_way_since.pop(origin, None), self.written.get(origin, 0)
        self.under_way_since.pop(target, None)
        multiplied = self.multiplied.pop(target, None)
        super().do_mov(rest, operands)
        if target in self.tracked:
            self._note(self.written, target, written)
        if multiplied is not None:
            self.multiplied[target] = multiplied
        if known is not None:
            self.under_way_since[origin] = known
            self.tracked.add(target)
            self._note(self.under_way_since, target, known)

    def do_wgmma(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if rest[0] == "fence":
            self.fenced[self.mask] = self.step
        elif rest[0] == "commit_group":
            self.committed[self.mask] += 1
        elif rest[0] == "wait_group":
            self._completed(int(operands[0]))
        else:
            self._multiply_all(rest, operands)

    def _group_of(self, thread: int) -> tuple[int, int]:
        """A thread's block, and its warpgroup there."""
        return thread // self.per_block, thread % self.per_block // GROUP

    def _completed(self, left: int) -> None:
        self.shared.end_loads(np.flatnonzero(self.mask))  # at least what the wgmmas took
        done = np.maximum(self.completed, self.committed - left)
        for warp in map(int, self.warps()):
            group, mine = int(done[warp * WARP]), np.arange(warp * WARP, warp * WARP + WARP)
            while group > 0 and (warp, group) not in self.sent_at:
                group -= 1
            if group > 0:
                self.clocks.saw(mine, self.agents[self._group_of(warp * WARP)], self.sent_at[warp, group])
            # Who loaded the registers that were multiplied had these loads behind it.
            for of, told in self.taken_in.get(self._group_of(warp * WARP), []):
                if of <= group:
                    self.clocks.acquire(mine, told)
        self.completed = np.where(self.mask, done, self.completed)

    def _multiply_all(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        n, k = map(int, re.fullmatch(r"m64n(\d+)k(\d+)", rest[3]).groups())  # type: ignore[union-attr]
        names, kind, target = parts(operands[0]), rest[5], rest[4]
        kept = self._predicate(operands[3])
        flags = [int(each) for each in operands[4:]]
        assert n in range(8, 257, 8), "a shape that is not"
        assert len(names) == n // (2 if target == "f32" else 4), "sums of another shape"
        assert (self.fenced[self.mask] > 0).all(), "a wgmma, and no wgmma.fence before"
        self._expect_fenced(names if kept[self.mask].any() else (), parts(operands[1]))
        held = self._sums_before(names, target)
        rows, columns = sums_at(n)
        wide = held.shape[0]
        for first in np.flatnonzero(self.mask)[::GROUP]:
            lanes = slice(first, first + GROUP)
            c = np.zeros((ROWS, n), np.float32)
            assert len(set(kept[lanes])) == 1, "threads of a warpgroup that add up otherwise"
            if kept[first]:
                c[rows, columns] = held[:, lanes]
            a, b = self._sides(int(first), operands, kind, n, k, flags)
            total = rounded(self.sums(c, a, b, kind), target)
            held[:, lanes] = total[rows, columns][:wide]
        self._put_sums(names, target, held)

    def _expect_fenced(self, sums: tuple[str, ...], others: tuple[str, ...]) -> None:
        for name in (*sums, *(others if len(others) == 4 else ())):
            if name in self.written:
                late = self.written[name] > self.fenced
                assert not late[self.mask].any(), f"{name} was written after the last wgmma.fence"

    def _sums_before(self, names: tuple[str, ...], target: str) -> Array:
        """Of all threads, under way or not: [elements, threads]."""
        nothing = np.full(self.threads, 0xFFFFFFFF, np.uint32)
        held = np.stack([self.registers.get(name, nothing).view(np.uint32) for name in names])
        if target == "f32":
            return held.view(np.float32).copy()
        return numbers(np.ascontiguousarray(held.T).view(np.uint16), target).T.copy()

    def _put_sums(self, names: tuple[str, ...], target: str, held: Array) -> None:
        if target != "f32":
            held = np.ascontiguousarray(rounded(np.ascontiguousarray(held.T), target)).view(np.uint32).T
        for name, each in zip(names, held, strict=True):
            super().put(name, np.ascontiguousarray(each))
            self._note(self.under_way_since, name, self.committed + 1)
            self._note(self.written, name, 0)

    def _sides(self, first: int, operands: tuple[str, ...], kind: str, n: int, k: int, flags: list[int]) -> list[Array]:
        """A and B as a warpgroup has them: [64, k], [k, n]."""
        agent = self.agents.setdefault(self._group_of(first), -1)
        if agent < 0:
            agent = self.agents[self._group_of(first)] = self.clocks.agent()
        for warp in range(first // WARP, first // WARP + 4):
            self.sent_at[warp, int(self.committed[first]) + 1] = self.step
        in_registers = operands[1].startswith("{")
        orders = [0, *flags[2:]] if in_registers else flags[2:]
        orders = orders + [0] * (2 - len(orders))
        assert kind in {"f16", "bf16"} or not any(orders), "32-bit elements are read along k alone"
        if in_registers:
            a = self._held(first, parts(operands[1]), kind, k)
        else:
            a = self._shared_side(first, operands[1], agent, kind, ROWS, k, bool(orders[0]))
        b = self._shared_side(first, operands[2], agent, kind, n, k, bool(orders[1]))
        return [a * np.float32(flags[0]), b.T * np.float32(flags[1])]

    def _held(self, first: int, names: tuple[str, ...], kind: str, k: int) -> Array:
        """A from registers: each warp has 16 rows."""
        held = self.elements(names, kind)[:, first : first + GROUP].reshape(-1, 4, WARP)
        rows, columns = places("a", kind, 16, k)
        a = np.zeros((4, 16, k), np.float32)
        a[:, rows, columns] = held.swapaxes(0, 1)
        told = (int(self.committed[first]) + 1, self.clocks.release(np.arange(first, first + GROUP), self.step))
        at = self._group_of(first)
        self.taken_in[at] = [*self.taken_in.get(at, [])[-8:], told]
        for name in names:
            self._note(self.multiplied, name, self.committed + 1)
        return a.reshape(ROWS, k)

    def _shared_side(self, first: int, operand: str, agent: int, kind: str, count: int, k: int, cross: bool) -> Array:
        """A matrix that a descriptor tells of: [count, k]."""
        given = self.value(operand, "u64")[first : first + GROUP]
        assert (given == given[0]).all(), "threads of a warpgroup that mean several matrices"
        word, size = int(given[0]), 4 if kind == "tf32" else 2
        start, along, lines = ((word >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        assert not word >> 49 & 7, "a matrix with an offset of its pattern"
        span = SWIZZLES[word >> 62]
        at = start + pieces(count, k if cross else k * size, cross, span, along, lines)
        at = swizzled(at, span) + int(self.rank[first]) * self.shared.size
        assert int(at.max() % self.shared.size) + 16 <= self.shared.limit, "a matrix past the end of shared memory"
        words = at[..., None] // self.shared.grain + np.arange(16 // self.shared.grain)
        flat = words.reshape(-1)
        who = first + np.arange(0, GROUP, WARP)
        self.shared.expect_visible(who, np.broadcast_to(flat, (4, len(flat))))
        self.shared.expect_fenced(flat)
        self.shared.take(agent, flat)
        content: Array = self.shared.bytes[at[..., None] + np.arange(16)].view(TYPES[kind])
        found = numbers(np.ascontiguousarray(content), kind)
        return found.swapaxes(1, 2).reshape(count, k) if cross else found.reshape(count, k)
