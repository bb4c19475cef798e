"""The scheduler of machine: which threads of a cluster's blocks go next, and how far.

Threads at the same place go on together, and who is behind goes first; with `draw`, a random.Random, now and then a
warp runs ahead. When nobody can go on, an AssertionError tells where everybody is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kernels.launch import Launch
from tests.ptx_interpreter.barriers import Barriers
from tests.ptx_interpreter.clocks import Clocks
from tests.ptx_interpreter.program import WARP, Array, Program, Statement
from tests.ptx_interpreter.shared_memory import Shared

CONTROL: Final = frozenset({"bra", "brx", "ret", "exit", "bar", "barrier", "mbarrier"})
TOGETHER: Final = frozenset({"mma", "ldmatrix", "stmatrix", "movmatrix", "shfl", "vote", "redux", "match", "elect"})
MASKED: Final = frozenset({"shfl", "vote", "redux", "match", "elect", "bar"})
WARPGROUP: Final = 4 * WARP
PATIENCE: Final = 5000  # times that everybody asks for what is not there, before nobody is believed to bring it


def alignment(one: Statement) -> int:
    """How many threads have to come to an instruction together: 1, a warp's, or a warpgroup's."""
    if one.name in {"wgmma", "setmaxnreg"}:
        return WARPGROUP if one.rest[0] in {"mma_async", "inc", "dec"} else WARP
    apart = one.name not in TOGETHER | {"wmma", "wgmma"} and (one.name, one.rest[:1]) != ("bar", ("warp",))
    return 1 if apart else WARP


class Block(Barriers):
    """The blocks of one cluster: one block, where there are no clusters."""

    rarely = 30  # times that all warps go on together to one that each runs ahead of the others

    def __init__(
        self,
        program: Program,
        launch: Launch,
        arguments: Sequence[Any],
        memory: Array,
        readable: Array,
        first: int,
        draw: Any = None,
    ) -> None:
        super().__init__(program, launch, tuple(arguments), first)
        self.memory, self.readable, self.draw = memory, readable, draw
        self.clocks = Clocks(self.threads)
        size = max(program.shared_bytes + launch.dynamic_smem_bytes, launch.shared_bytes)
        self.shared = Shared(size, self.rank, self.clocks, self.blocks, 2 if program.narrow else 4)
        self.local = np.full((self.threads, program.local_bytes), 0xFF, np.uint8)
        self.begin_copies()
        self.begin_barriers()
        self.end, self.wide, self.whole = len(program.code), program.wide(alignment), True
        self.bound, self.budget, self.favourite = self.end, 0, -1
        self.begin()

    def begin(self) -> None:
        """What there is beside registers, for the instructions of some architectures."""

    def run(self) -> None:
        """Until all threads have left."""
        with np.errstate(all="ignore"):
            while (self.place < self.end).any():
                group = self._group()
                if group is not None:
                    self._go(int(self.place[group.argmax()]), group)
            self.finish()

    def finish(self) -> None:
        """What is left to be done when all threads have left."""

    def proceed(self) -> bool:
        """Something happens beside the threads, when none of these can go on; False where nothing is under way."""
        left = self.place < self.end
        whole = self.meeting & np.repeat((~left | self.meeting).reshape(-1, WARP).all(1), WARP) if left.any() else left
        assert not whole.any(), f"threads of a warp are apart\n{self.report()}"
        return self.complete_cluster()

    def _group(self) -> Array | None:
        """The threads that go next, all at one place, and `bound`, where they meet others."""
        going = ~self.waiting & (self.place < self.end)
        if not going.any():
            assert self.proceed(), f"nobody can go on, some threads wait for others\n{self.report()}"
            return None
        chosen = self._chosen(going)
        at = self.place[chosen].min()
        group: Array = going & (self.place == at)
        others = self.place[chosen & ~group]
        self.bound = int(others.min()) if len(others) else self.end
        return group

    def _chosen(self, going: Array) -> Array:
        """Those among whom the last ones go first."""
        if self.draw is not None:
            going = self._favoured(going)
        least = self.lag[going].min()
        assert least < PATIENCE, f"everybody asks for what nobody brings\n{self.report()}"
        chosen: Array = going & (self.lag == least)
        return chosen

    def _favoured(self, going: Array) -> Array:
        if self.budget <= 0:
            self.budget = self.draw.randrange(20, 400)
            self.favourite = self.draw.randrange(self.rarely * self.threads) // WARP
        favoured = going & (np.arange(self.threads) // WARP == self.favourite)
        return favoured if favoured.any() else going

    def _go(self, at: int, group: Array) -> None:
        """These threads go on, until they branch, wait, or meet others."""
        self.whole, wide_ones = bool(group.all()), self.wide
        while True:
            one = self.program.code[at]
            self.step += 1
            self.budget -= 1
            self.shared.step = self.step
            if wide_ones[at] > 1 and not self.whole:
                group = self._met(one, at, group, wide_ones[at])
                self.whole = bool(group.all())
                if not group.any():
                    return
            if one.name in CONTROL:
                self.place[group] = at + 1
                self._do(one, group)
                return
            self._do(one, group)
            at += 1
            if at >= self.bound or (self.draw is not None and self.budget <= 0):
                self.place[group] = at
                return

    def _met(self, one: Statement, at: int, group: Array, wide: int) -> Array:
        """Those of the threads whose warps are here, with all that are asked for; the others wait for these."""
        group = group | (self.meeting & (self.place == at))
        needed = np.ones(self.threads, np.bool_)
        if one.name in MASKED and "sync" in one.rest:
            first = group.reshape(-1, WARP).argmax(1) + np.arange(0, self.threads, WARP)
            asked = np.repeat(self.value(one.operands[-1], "u32")[first], WARP)
            needed = asked >> self.registers["%laneid"] & np.uint32(1) > 0
        # A block's last warps may be fewer than a warpgroup: these never are whole.
        each = np.pad((group | ~needed).reshape(-1, self.per_block), ((0, 0), (0, -self.per_block % wide)))
        whole = np.repeat(each.reshape(len(each), -1, wide).all(2), wide, axis=1)[:, : self.per_block].reshape(-1)
        apart, group = group & ~whole, group & whole
        self.meeting[apart], self.waiting[apart], self.place[apart] = True, True, at
        self.meeting[group], self.waiting[group] = False, False
        return group

    def _do(self, one: Statement, group: Array) -> None:
        self.mask, self.full = group, self.whole
        if one.guard:
            self.mask = group & (self.value(one.guard, "pred") ^ one.negated)
            self.full = self.whole and bool(self.mask.all())
        if not one.guard or self.full or self.mask.any():
            action = getattr(self, f"do_{one.name}", None)
            if action is None:
                self.compute(one.name, one.rest, one.operands)
            else:
                action(one.rest, one.operands)

    def report(self) -> str:
        """Where each warp is."""
        lines = []
        for warp in range(-(-self.threads // WARP)):
            lanes = slice(warp * WARP, warp * WARP + WARP)
            for at in np.unique(self.place[lanes]):
                count = int((self.place[lanes] == at).sum())
                asleep = bool(self.waiting[lanes][self.place[lanes] == at].all())
                near = f"past {self.program.code[at - (at > 0)]} | at {self.program.code[at]}" if at < self.end else ""
                where = f"{'waits' if asleep else 'is'} {near}" if near else "has left"
                lines.append(f"block {self.rank[warp * WARP]} warp {warp} ({count} threads) {where}")
        return "\n".join(lines)

    def do_bra(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.place[self.mask] = self.program.labels[operands[0]]

    def do_brx(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        targets = np.array([self.program.labels[label] for label in self.program.tables[operands[1]]])
        self.place[self.mask] = targets[self.value(operands[0], "u32")[self.mask]]

    def do_ret(self, _: tuple[str, ...], __: tuple[str, ...]) -> None:
        self.place[self.mask] = self.end

    do_exit = do_ret

    def do_trap(self, _: tuple[str, ...], __: tuple[str, ...]) -> None:
        raise AssertionError(f"a trap\n{self.report()}")

    def do_nanosleep(self, _: tuple[str, ...], __: tuple[str, ...]) -> None:
        self.lag[self.mask] += 1

    def do_cp(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        self.cp_async(rest, operands)

    def do_fence(self, rest: tuple[str, ...], _: tuple[str, ...]) -> None:
        if rest[:2] == ("proxy", "async"):
            self.shared.fence(np.flatnonzero(self.mask))
