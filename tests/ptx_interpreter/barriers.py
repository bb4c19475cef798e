"""Barriers of a block, named ones among them, and of a cluster (PTX ISA, "bar", "barrier", "barrier.cluster").

Threads that wait are left out until what they wait for has come; what they have seen then is in their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.ptx_interpreter.clocks import Clocks, joined
from tests.ptx_interpreter.program import WARP, Array
from tests.ptx_interpreter.warp_matrices import Tensor


@dataclass
class Named:
    """Who has come to a barrier of a block, and who of them waits there."""

    expected: int
    come: list[Array] = field(default_factory=list)
    waits: list[Array] = field(default_factory=list)
    said: list[Array] = field(default_factory=list)
    told: list[tuple[str, str, Array]] = field(default_factory=list)


class Barriers(Tensor):
    """Instructions by which threads wait for each other."""

    def begin_barriers(self) -> None:
        self.clocks: Clocks
        self.place = np.zeros(self.threads, np.int64)
        self.waiting, self.meeting = np.zeros(self.threads, np.bool_), np.zeros(self.threads, np.bool_)
        self.lag = np.zeros(self.threads, np.int32)  # how often each thread asked for what was not there
        self.named: dict[tuple[int, int], Named] = {}
        self.cluster_phase, self.cluster_told = 0, np.zeros(0, np.int32)
        self.cluster_due = np.zeros(self.threads, np.int64)  # the phase that each thread has arrived for
        self.cluster_come, self.cluster_waits = (np.zeros(self.threads, np.bool_) for _ in range(2))
        self.set_up = np.zeros(self.threads, np.int32)  # when each thread last had a fence.mbarrier_init

    def do_bar(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        words = tuple(word for word in rest if word not in {"cta", "aligned"})
        if words[0] == "warp":
            for warp in np.unique(np.flatnonzero(self.mask) // WARP):
                lanes = slice(warp * WARP, warp * WARP + WARP)
                self.clocks.together(warp * WARP + np.flatnonzero(self.mask[lanes]), self.step)
        elif words[0] == "cluster":
            self._cluster(words)
        else:
            self._named(words, operands)

    do_barrier = do_bar

    def _named(self, words: tuple[str, ...], operands: tuple[str, ...]) -> None:
        target, operands = (operands[0], operands[1:]) if words[0] == "red" else ("_", operands)
        said = (
            self.value(operands[-1].removeprefix("!"), "pred") ^ operands[-1].startswith("!") if target != "_" else None
        )
        sizes = operands[1:-1] if target != "_" else operands[1:]
        numbers = self.value(operands[0], "u32").astype(np.int64)
        counts = self.value(sizes[0], "u32").astype(np.int64) if sizes else np.full(self.threads, self.per_block)
        for rank, number in np.unique(np.stack([self.rank, numbers])[:, self.mask], axis=1).T:
            who = np.flatnonzero(self.mask & (self.rank == rank) & (numbers == number))
            one = self.named.setdefault((int(rank), int(number)), Named(int(counts[who[0]])))
            assert (counts[who] == one.expected).all(), "threads at a barrier that expect other numbers of them"
            one.come.append(who)
            if words[0] != "arrive":
                one.waits.append(who)
                self.waiting[who] = True
            if said is not None:
                one.said.append(said[who])
                one.told.append((target, words[1], who))
            if sum(map(len, one.come)) >= one.expected:
                self._complete(self.named.pop((int(rank), int(number))))

    def _complete(self, one: Named) -> None:
        come, waits = np.concatenate(one.come), np.concatenate(one.waits or [np.zeros(0, np.int64)])
        assert len(come) == one.expected, "more threads at a barrier than it is for"
        if len(come) == len(waits):
            self.clocks.together(come, self.step)
        else:
            self.clocks.acquire(waits, self.clocks.release(come, self.step))
        self.waiting[waits] = False
        if one.said:
            said = np.concatenate(one.said)
            results = {"popc": np.uint32(said.sum()), "and": np.bool_(said.all()), "or": np.bool_(said.any())}
            for target, how, who in one.told:
                self.mask, self.full = np.isin(np.arange(self.threads), who), False
                self.put(target, np.full(self.threads, results[how]))

    def _cluster(self, words: tuple[str, ...]) -> None:
        who = np.flatnonzero(self.mask)
        if words[1] == "arrive":
            assert not self.cluster_come[who].any(), "a thread that arrives at a cluster's barrier twice"
            self.cluster_come[who], self.cluster_due[who] = True, self.cluster_phase
            if "relaxed" not in words:
                self.cluster_told = joined(self.cluster_told, self.clocks.release(who, self.step))
            else:
                self.cluster_told = joined(self.cluster_told, np.where(self.mask, self.set_up, 0))
            self.complete_cluster()
        else:
            done = self.cluster_due[who] < self.cluster_phase
            assert (done | self.cluster_come[who]).all(), "a wait for a cluster's barrier before an arrival there"
            self.clocks.acquire(who[done], self.cluster_told)
            self.waiting[who[~done]] = self.cluster_waits[who[~done]] = True
            self.place[who[~done]] -= 1  # to ask again

    def complete_cluster(self) -> bool:
        """Whether all threads that are left have arrived; then those who wait go on."""
        left = self.place < len(self.program.code)
        if not self.cluster_come.any() or not self.cluster_come[left].all():
            return False
        self.cluster_phase += 1
        self.cluster_come[:] = False
        self.waiting[self.cluster_waits] = False
        self.cluster_waits[:] = False
        return True

    def do_membar(self, _: tuple[str, ...], __: tuple[str, ...]) -> None:
        """What a thread does is seen at once here, by those who may look."""

    def do_griddepcontrol(self, _: tuple[str, ...], __: tuple[str, ...]) -> None:
        """Launches are one after the other here."""

    def do_setmaxnreg(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        count = int(operands[0])
        assert 24 <= count <= 256, "a number of registers that there is not"
        assert count % 8 == 0, "a number of registers that there is not"
