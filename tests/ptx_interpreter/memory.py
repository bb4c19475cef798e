"""Loads, stores, atomics and copies past the registers (PTX ISA, "Data Movement", "cp.async", "atom")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tests.ptx_interpreter.bits import Bits
from tests.ptx_interpreter.numbers import FLOATS, HALVES, numbers, rounded
from tests.ptx_interpreter.program import TYPES, Array, parts
from tests.ptx_interpreter.registers import ALIGN, LOCAL_WINDOW, PARAMETERS, SHARED_WINDOW
from tests.ptx_interpreter.shared_memory import Shared

POISON: Final = 0xFF


def space_of(rest: tuple[str, ...]) -> str:
    """Which memory is meant: global where nothing is said."""
    words = [word.partition("::")[0] for word in rest]
    return next((word for word in words if word in {"shared", "local", "param", "const"}), "global")


class Memory(Bits):
    """What registers and memory give each other."""

    memory: Array
    readable: Array
    shared: Shared
    local: Array

    def do_ld(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        dtype, targets = np.dtype(TYPES[rest[-1]]), parts(operands[0])
        if space_of(rest) == "param":
            number = int(operands[1].strip("[]").rpartition("_")[2])
            self.put(operands[0], np.full(self.threads, self.arguments[number]).astype(dtype))
            return
        size, first = len(targets) * dtype.itemsize, self.address(operands[1])[self.mask]
        content = np.zeros((self.threads, size), np.uint8)
        content[self.mask] = self._from(space_of(rest), np.flatnonzero(self.mask), first, size, "cluster" in str(rest))
        for target, column in zip(targets, content.view(dtype).T, strict=True):
            self.put(target, np.ascontiguousarray(column))

    def _from(self, space: str, threads: Array, first: Array, size: int, far: bool) -> Array:
        space, first = self._window(space, first)
        if space == "shared":
            self.shared.meet(threads, first % ALIGN, size)
            return self.shared.load(threads, self.shared.places(threads, first, not far), size)
        if space == "local":
            return self.local[threads[:, None], first[:, None] + np.arange(size)]
        return self.read(first, size)

    @staticmethod
    def _window(space: str, first: Array) -> tuple[str, Array]:
        """What is meant by pointers to anywhere."""
        if space != "global" or not len(first) or int(first.max()) < SHARED_WINDOW:
            return space, first
        assert int(first.max()) < PARAMETERS, "an access to a parameter by a pointer"
        start = LOCAL_WINDOW if int(first.max()) >= LOCAL_WINDOW else SHARED_WINDOW
        assert ((first >= start) & (first < 2 * start)).all(), "pointers of an access to several memories"
        return ("local" if start == LOCAL_WINDOW else "shared"), first - start

    def read(self, first: Array, size: int) -> Array:
        """Rows of bytes of global memory."""
        assert (first % size == 0).all(), "an access to global memory that is not aligned"
        places = first[:, None] + np.arange(size)
        assert (first >= 0).all()
        assert (first + size <= len(self.readable)).all(), "a read past what there is"
        assert self.readable[places].all(), "a read past what there is"
        return self.memory[places]

    def do_st(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        assert "async" not in rest, "an instruction that is not known here: st.async"
        rows = np.stack([self.value(origin, rest[-1])[self.mask] for origin in parts(operands[1])], 1)
        content, threads = rows.view(np.uint8), np.flatnonzero(self.mask)
        space, first = self._window(space_of(rest), self.address(operands[0])[self.mask])
        places = first[:, None] + np.arange(content.shape[1])
        if space == "shared":
            self.shared.store(threads, self.shared.places(threads, first, "cluster" not in str(rest)), content)
        elif space == "local":
            self.local[threads[:, None], places] = content
        else:
            assert (first >= 0).all()
            assert (first % content.shape[1] == 0).all(), "an access to global memory that is not aligned"
            self.memory[places] = content

    def do_atom(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """One thread after the other, as they are numbered."""
        kind = next(word for word in reversed(rest) if word in TYPES)
        dtype = np.dtype(TYPES[kind])
        how = next(
            word for word in rest if word in {"add", "cas", "exch", "min", "max", "inc", "dec", "and", "or", "xor"}
        )
        given = [self.value(operand, kind) for operand in operands[2:]]
        space, first = self._window(space_of(rest), self.address(operands[1])[self.mask])
        before = np.zeros(self.threads, dtype)
        for thread, place in zip(np.flatnonzero(self.mask), first, strict=True):
            assert place % dtype.itemsize == 0, "an atomic access that is not aligned"
            if space == "shared":
                where = self.shared.places(np.array([thread]), np.array([place]), "cluster" not in str(rest))[0]
                word = self.shared.bytes[where : where + dtype.itemsize].view(dtype)
                self.shared.fresh[where // self.shared.grain] = True
            else:
                word = self.memory[place : place + dtype.itemsize].view(dtype)
            before[thread] = word[0]
            word[0] = self._next(how, kind, word[0], *(each[thread] for each in given))
        self.put(operands[0], before)

    @staticmethod
    def _next(how: str, kind: str, old: Any, new: Any, other: Any = None) -> Any:
        if how == "add" and (kind in FLOATS or kind in HALVES):
            halves: Array = np.array([old, new]).view(np.uint16 if kind in HALVES else TYPES[kind]).reshape(2, -1)
            one = HALVES.get(kind, kind)
            total = sum(numbers(np.ascontiguousarray(each), one).astype(np.float64) for each in halves)
            return rounded(np.asarray(total), one).view(TYPES[kind])[0]
        results: dict[str, Callable[[], Any]] = {
            "add": lambda: old + new,
            "cas": lambda: other if old == new else old,
            "exch": lambda: new,
            "min": lambda: min(old, new),
            "max": lambda: max(old, new),
            "inc": lambda: 0 if old >= new else old + 1,
            "dec": lambda: new if old == 0 or old > new else old - 1,
            "and": lambda: old & new,
            "or": lambda: old | new,
            "xor": lambda: old ^ new,
        }
        return results[how]()

    def do_red(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if "async" in rest:
            raise AssertionError("an instruction that is not known here: red.async")
        self.do_atom(rest, ("_", *operands))

    def do_prefetch(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """Changes nothing that is seen."""

    do_prefetchu = do_discard = do_applypriority = do_prefetch

    def do_createpolicy(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.put(operands[0], np.zeros(self.threads, np.uint64))


class Copies(Memory):
    """Copies from global into shared memory past the registers, in groups of each thread's own."""

    def begin_copies(self) -> None:
        self.sent = np.zeros(self.threads, np.int32)  # groups of each thread
        self.under_way: list[tuple[Array, Array, Array, Array]] = []

    def cp_async(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        if rest[1] == "commit_group":
            self.sent[self.mask] += 1
        elif rest[1] == "wait_group":
            self._arrive(int(operands[0]))
        elif rest[1] == "wait_all":
            self.sent[self.mask] += 1
            self._arrive(0)
        else:
            self._copy(operands)

    def _copy(self, operands: tuple[str, ...]) -> None:
        """What is not kept is filled with zeros; where nothing is said of that, all is kept."""
        size, threads = int(operands[2], 0), np.flatnonzero(self.mask)
        taken = self.value(operands[3] if len(operands) > 3 else operands[2], "u32")[self.mask]
        content, first = np.zeros((len(threads), size), np.uint8), self.address(operands[1])[self.mask]
        assert (first % size == 0).all(), "a copy that is not aligned"
        for count in np.unique(taken):
            assert count <= size, "a copy of more than there is room for"
            rows = np.flatnonzero(taken == count)
            if count:
                places = first[rows, None] + np.arange(count)
                assert (first[rows] >= 0).all()
                assert self.readable[places].all(), "a read past what there is"
                content[rows, :count] = self.memory[places]
        places = self.shared.places(threads, self.address(operands[0])[self.mask])
        self.shared.store(threads, places, np.full_like(content, POISON))
        self.under_way.append((threads, places, content, self.sent[threads]))

    def _arrive(self, left: int) -> None:
        """Copies of the threads at hand arrive, all but those of their last `left` groups."""
        waiting = []
        for threads, places, content, groups in self.under_way:
            here = self.mask[threads] & (groups < self.sent[threads] - left)
            if here.any():
                self.shared.store(threads[here], places[here], content[here])
            if not here.all():
                rest = ~here
                waiting.append((threads[rest], places[rest], content[rest], groups[rest]))
        self.under_way = waiting
