"""Copies that the TMA unit makes: boxes of tensors and runs of bytes (PTX ISA, "cp.async.bulk"); and st.async.

What is on its way into shared memory is NaN, and arrives in some order once nobody can go on without it (with `draw`,
now and then before). What is on its way out must not be changed before a wait_group.read; it is in global memory after
a wait_group, or when the block ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.launch import TensorMap
from tests.ptx_interpreter.clocks import NEVER
from tests.ptx_interpreter.mbarriers import Phased, Phases
from tests.ptx_interpreter.numbers import rounded
from tests.ptx_interpreter.program import Array, parts
from tests.ptx_interpreter.registers import ALIGN, MAP_BYTES, PARAMETERS

POISON = 0xFF
SPANS = {0: 0, 32: 1, 64: 3, 128: 7}  # which bits above 7 are added to those above 4, by the swizzle's span


def swizzled(places: Array, span: int) -> Array:
    """Where 16-byte pieces go within rows of 128 bytes (PTX ISA, "Swizzling Modes")."""
    found: Array = places ^ ((places >> 7 & SPANS[span]) << 4)
    return found


@dataclass(frozen=True)
class Bound:
    """A tensor map whose operand is at a base address."""

    tensor: TensorMap
    base: int

    def box(self, corner: tuple[int, ...]) -> tuple[Array, Array]:
        """Where each element of a box is in global memory, in the box's order, and whether it is in the tensor."""
        one = self.tensor
        at, inside = np.full((1,), self.base + one.offset, np.int64), np.ones((1,), np.bool_)
        steps = (one.itemsize, *one.strides)
        for begin, count, size, step in zip(corner[::-1], one.box[::-1], one.sizes[::-1], steps[::-1], strict=True):
            along = begin + np.arange(count, dtype=np.int64)
            at = (at[:, None] + along * step).reshape(-1)
            inside = (inside[:, None] & (along >= 0) & (along < size)).reshape(-1)
        assert (self.base + one.offset) % 16 == 0, "a tensor that does not begin at 16 bytes"
        assert corner[0] * one.itemsize % 16 == 0, "a box that does not begin at 16 bytes: an illegal instruction"
        assert one.swizzle in {0, one.box[0] * one.itemsize}, "a box whose rows are shorter than the swizzle's span"
        return at, inside


@dataclass
class Load:
    """Bytes on their way into shared memory."""

    barrier: Phased
    places: Array
    words: Array
    content: Array


@dataclass
class Store:
    """Bytes on their way out of shared memory, of which `kept` are in the tensor."""

    words: Array
    places: Array
    content: Array
    read: bool = False


@dataclass
class Groups:
    """A thread's groups of stores; the last one is not committed."""

    groups: list[list[Store]] = field(default_factory=lambda: [[]])


class Bulk(Phases):
    """Instructions that the TMA unit carries out."""

    def begin(self) -> None:
        super().begin()
        self.loads: list[Load] = []
        self.stores: dict[int, Groups] = {}

    def do_cp(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if rest[:2] == ("async", "mbarrier"):
            self._arrive_after_copies(rest, operands)
        elif "bulk" not in rest:
            self.cp_async(rest, operands)
        elif "prefetch" in rest:
            return
        elif "commit_group" in rest:
            for thread in np.flatnonzero(self.mask):
                self.stores.setdefault(int(thread), Groups()).groups.append([])
        elif "wait_group" in rest:
            for thread in np.flatnonzero(self.mask):
                self._await(int(thread), int(operands[0]), "read" in rest)
        else:
            for thread in np.flatnonzero(self.mask):
                self._send(int(thread), rest, operands)

    def _arrive_after_copies(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """The thread's copies of cp.async arrive, then it does: as late as it may be, which is at once here."""
        assert "noinc" in rest, "an arrival that is counted twice"
        self.sent[self.mask] += 1
        self._arrive(0)
        self.do_mbarrier(("arrive", *rest[3:]), ("_", *operands))

    def _send(self, thread: int, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.shared.step = self.step
        inward = next(word for word in rest if word.startswith(("shared", "global"))).startswith("shared")
        if inward:
            self._bring(thread, rest, operands)
        else:
            self._store_out(thread, rest, operands)

    def do_st(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if "async" not in rest:
            super().do_st(rest, operands)
            return
        threads = np.flatnonzero(self.mask)
        rows = np.stack([self.value(origin, rest[-1])[threads] for origin in parts(operands[1])], 1)
        content = np.ascontiguousarray(rows).view(np.uint8)
        places, bars = (self.shared.places(threads, self.address(operands[at])[threads], False) for at in (0, 2))
        assert (places // self.shared.size == bars // self.shared.size).all(), "bytes and their barrier in two blocks"
        self.shared.step = self.step
        for bar in np.unique(bars):
            sent = bars == bar
            one, words = self.barrier(int(bar), threads[sent]), self.shared.words(places[sent], content.shape[1])
            self.shared.expect_free(threads[sent], words)
            self.shared.wrote[words], self.shared.writer[words], self.shared.fresh[words] = NEVER, one.agent, True
            where = places[sent, None] + np.arange(content.shape[1])
            self.shared.bytes[where] = POISON
            self.loads.append(Load(one, where.reshape(-1), words.reshape(-1), content[sent].reshape(-1)))

    def _named_box(self, thread: int, operand: str) -> tuple[Bound, Array, Array]:
        pointer, _, coordinates = operand.strip("[]").partition(",")
        at = int(self.value(pointer, "u64")[thread]) - PARAMETERS
        bound: Any = self.arguments[at // MAP_BYTES] if 0 <= at // MAP_BYTES < len(self.arguments) else None
        assert isinstance(bound, Bound), "no tensor map"
        assert at % MAP_BYTES == 0, "no tensor map"
        corner = tuple(int(self.value(name, "s32")[thread]) for name in parts(coordinates.strip()))
        assert len(corner) == len(bound.tensor.sizes), "coordinates of another tensor"
        return bound, *bound.box(corner)

    def _bring(self, thread: int, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        span = 0
        if "tensor" in rest:
            bound, at, inside = self._named_box(thread, operands[1])
            size, span = bound.tensor.itemsize, bound.tensor.swizzle
            content = np.zeros((len(at), size), np.uint8)
            if inside.any():
                content[inside] = self.read(at[inside], size)
            if bound.tensor.element == "tfloat32":
                content = rounded(content.view(np.float32), "tf32").view(np.uint8)
            barrier, given = operands[2], operands[3:]
        else:
            count = int(self.value(operands[2], "u32")[thread])
            first = self.address(operands[1])[thread]
            assert (count | first) % 16 == 0, "a bulk copy that is not of whole 16 bytes"
            content = self.read(first + np.arange(0, count, 16), 16)
            barrier, given = operands[3], operands[4:]
        masks = int(self.value(given[0], "u16")[thread]) if "multicast::cluster" in rest else 0
        ranks = [rank for rank in range(self.blocks) if masks >> rank & 1]
        assert not masks >> self.blocks, "a block that the cluster has not"
        self._deal(thread, operands[0], barrier, content.reshape(-1), ranks, span)

    def _deal(self, thread: int, to: str, barrier: str, content: Array, ranks: list[int], span: int) -> None:
        """To one place, or to the same place in several blocks; each has its own barrier."""
        who = np.array([thread])
        firsts = [int(self.address(operand)[thread]) for operand in (to, barrier)]
        if ranks:
            pairs = [[rank * self.shared.size + first % ALIGN for first in firsts] for rank in ranks]
        else:
            pairs = [[int(self.shared.places(who, np.array([first]), near=False)[0]) for first in firsts]]
        for place, bar in pairs:
            assert place // self.shared.size == bar // self.shared.size, "bytes and their barrier in two blocks"
            assert place % 128 == 0, "a bulk copy to shared memory that is not aligned"
            one = self.barrier(bar, who)
            self.shared.expect_fenced(self.shared.words(np.array([bar]), 8))
            words = self._words(place, len(content))
            self.shared.expect_free(who, words[None])
            self.shared.expect_fenced(words)
            self.shared.expect_loaded(words)
            self.shared.wrote[words], self.shared.writer[words] = NEVER, one.agent
            self.shared.bytes[place : place + len(content)] = POISON
            self.loads.append(Load(one, swizzled(place + np.arange(len(content)), span), words, content))

    def _words(self, place: int, count: int) -> Array:
        size = max(self.shared.size, 1)
        assert place % size + count <= self.shared.limit, "a bulk copy past the end of shared memory"
        return np.arange(place // self.shared.grain, (place + count) // self.shared.grain)

    def deliver(self) -> None:
        """One load arrives."""
        one = self.loads.pop(self.draw.randrange(len(self.loads)) if self.draw else 0)
        self.step += 1
        rank = int(one.places[0]) // self.shared.size
        assert (self.place[self.rank == rank] < self.end).any(), "bytes that arrive at a block that has ended"
        self.shared.bytes[one.places] = one.content
        self.shared.wrote[one.words] = self.step
        one.barrier.bytes -= len(one.content)
        self.end_phase(one.barrier)

    def _store_out(self, thread: int, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        assert "reduce" not in rest, "an instruction that is not known here: cp.reduce"
        first, who, span = self.address(operands[1])[thread], np.array([thread]), 0
        if "tensor" in rest:
            bound, at, inside = self._named_box(thread, operands[0])
            size, span = bound.tensor.itemsize, bound.tensor.swizzle
        else:
            size, count = 16, int(self.value(operands[2], "u32")[thread])
            at = self.address(operands[0])[thread] + np.arange(0, count, 16)
            assert (count | int(at[0])) % 16 == 0, "a bulk copy that is not of whole 16 bytes"
            inside = np.ones(len(at), np.bool_)
        place = int(self.shared.places(who, np.array([first]))[0])
        assert place % (128 if "tensor" in rest else 16) == 0, "a bulk copy from shared memory that is not aligned"
        words = self._words(place, len(at) * size)
        self.shared.expect_visible(who, words[None])
        self.shared.expect_fenced(words)
        self.shared.copying[words] += 1
        content = self.shared.bytes[swizzled(place + np.arange(len(at) * size), span)].reshape(-1, size)
        one = Store(words, at[inside][:, None] + np.arange(size), content[inside])
        self.stores.setdefault(thread, Groups()).groups[-1].append(one)

    def _await(self, thread: int, left: int, only_read: bool) -> None:
        groups = self.stores.setdefault(thread, Groups()).groups
        for place, group in enumerate(groups[:-1][: len(groups) - 1 - left]):
            for one in group:
                if not one.read:
                    one.read = True
                    self.shared.copying[one.words] -= 1
                    self.shared.mark_read(thread, one.words)
                if not only_read:
                    self.memory[one.places] = one.content
            if not only_read:
                groups[place] = []

    def proceed(self) -> bool:
        if self.loads:
            self.deliver()
            return True
        return super().proceed()

    def _chosen(self, going: Array) -> Array:
        if self.draw is not None and self.loads and self.draw.random() < 0.1:
            self.deliver()
        return super()._chosen(going)

    def finish(self) -> None:
        assert not self.loads, "a block has ended, and bytes are on their way to it"
        for thread in self.stores.values():
            for group in thread.groups:
                for one in group:
                    assert one.read, "a block has ended, and a bulk copy still reads its shared memory"
                    self.memory[one.places] = one.content
        assert all(not one.bytes for one in self.phased.values()), "bytes were announced that never arrived"
