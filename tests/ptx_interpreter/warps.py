"""What the threads of a warp do together (PTX ISA, "shfl.sync", "vote.sync", "redux.sync" and their like)."""

from __future__ import annotations

import numpy as np

from tests.ptx_interpreter.memory import Copies
from tests.ptx_interpreter.program import TYPES, WARP, Array

ALL: np.uint32 = np.uint32(0xFFFFFFFF)


class Warps(Copies):
    """Instructions by which threads of a warp see each other's registers."""

    def by_warp(self, values: Array) -> Array:
        """A row for each warp."""
        return values.reshape(-1, WARP)

    def _present(self) -> Array:
        """A mask of each warp's threads that are here, for each thread."""
        bits = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))
        return np.repeat((self.by_warp(self.mask) * bits).sum(1).astype(np.uint32), WARP)

    def do_activemask(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.put(operands[0], self._present())

    def do_shfl(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        target, _, inside = operands[0].partition("|")
        x = self.value(operands[1], rest[-1])
        by, bounds, lane = self.value(operands[2], "u32"), self.value(operands[3], "u32"), self.registers["%laneid"]
        by, clamp, segment = by & np.uint32(31), bounds & np.uint32(31), bounds >> np.uint32(8) & np.uint32(31)
        highest = (lane & segment) | (clamp & ~segment)
        how = rest[1]
        if how == "up":
            origin = lane.astype(np.int64) - by
            fits = origin >= highest
        else:
            origin = (lane & segment) | (by & ~segment) if how == "idx" else lane ^ by if how == "bfly" else lane + by
            fits = origin <= highest
        origin = np.where(fits, origin, lane).astype(np.int64)
        from_thread = np.arange(self.threads) // WARP * WARP + origin
        assert self.mask[from_thread[self.mask]].all(), "a shuffle from a thread that is not here"
        self.put(target, x[from_thread])
        if inside:
            self.put(inside, fits)

    def do_vote(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        held = operands[1].removeprefix("!")
        x = self.value(held, "pred") ^ operands[1].startswith("!")
        said, here = self.by_warp(x & self.mask), self.by_warp(self.mask)
        if rest[1] == "ballot":
            bits = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))
            found = (said * bits).sum(1).astype(np.uint32)
        elif rest[1] == "uni":
            found = (said == here).all(1) | ~said.any(1)
        else:
            found = said.any(1) if rest[1] == "any" else (said == here).all(1)
        self.put(operands[0], np.repeat(found, WARP))

    def do_redux(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        how, kind = rest[1], rest[-1]
        ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
        ufunc |= {"xor": np.bitwise_xor}
        x, info = self.value(operands[1], kind), np.iinfo(TYPES[kind])
        nothing = {"min": info.max, "max": info.min, "and": info.max if info.min == 0 else -1}.get(how, 0)
        rows = self.by_warp(np.where(self.mask, x, x.dtype.type(nothing)))
        self.put(operands[0], np.repeat(ufunc[how].reduce(rows, axis=1).astype(x.dtype), WARP))

    def do_match(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        x, here = self.by_warp(self.value(operands[1], rest[-1])), self.by_warp(self.mask)
        same = (x[:, :, None] == x[:, None, :]) & here[:, None, :]
        bits = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))
        found = (same * bits).sum(2).astype(np.uint32).reshape(-1)
        target, _, told = operands[0].partition("|")
        if rest[0] == "all":
            every = found == self._present()
            found = np.where(every, found, np.uint32(0))
            if told:
                self.put(told, every)
        self.put(target, found)

    def do_elect(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """The first thread of those named is the one."""
        assert rest == ("sync",), "an election of another kind"
        target, _, chosen = operands[0].partition("|")
        first = np.repeat(self.by_warp(self.mask).argmax(1), WARP)
        self.put(target, first.astype(np.uint32))
        if chosen:
            self.put(chosen, self.registers["%laneid"] == first)
