"""Barriers in shared memory whose phases threads and copies arrive at (PTX ISA, "mbarrier").

A try_wait whose phase is under way first says so, and when it is asked again it waits until that has ended: whoever
does not ask again goes on without. A test_wait says so each time, and the others go first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.ptx_interpreter.block import Block
from tests.ptx_interpreter.clocks import joined
from tests.ptx_interpreter.program import TYPES, Array
from tests.ptx_interpreter.registers import ALIGN

BYTES = 8
KNOWN = frozenset({"init", "inval", "arrive", "expect_tx", "complete_tx", "test_wait", "try_wait"})


@dataclass
class Phased:
    """One barrier: how many arrive in a phase, who is awaited in this one, and what those who wait will have seen."""

    place: int
    count: int
    agent: int  # of the copies that arrive here
    pending: int = 0
    bytes: int = 0  # announced and not arrived
    phase: int = 0
    told: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    asleep: list[Array] = field(default_factory=list)


class Phases(Block):
    """Instructions on barriers in shared memory."""

    rarely = 2

    def begin(self) -> None:
        """The state that these instructions have beside the registers'."""
        self.phased: dict[int, Phased] = {}
        self.asked = np.zeros(self.threads, np.bool_)

    def do_mbarrier(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        how, far = rest[0], "shared::cluster" in rest
        assert how in KNOWN, f"an instruction that is not known here: mbarrier.{how}"
        operand = next(each for each in operands if each.startswith("["))
        threads = np.flatnonzero(self.mask)
        places = self.shared.places(threads, self.address(operand)[threads], not far)
        given = operands[operands.index(operand) + 1 :]
        if how in {"test_wait", "try_wait"}:
            self._wait(rest, operands[0], threads, places, given)
            return
        before = np.zeros(self.threads, np.uint64)
        for place in np.unique(places):
            who = threads[places == place]
            if how == "init":
                self._set_up(int(place), who, given)
            elif how == "inval":
                del self.phased[int(place)]
            else:
                one = self.barrier(int(place), who)
                before[who] = one.phase
                self._arrive_at(one, rest, who, given)
        if how == "arrive" and operands[0] != operand:
            self.put(operands[0], before)

    def do_mapa(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        """What is at an address of the own block, in another block of the cluster."""
        assert rest[0] == "shared::cluster", "an address that is not of shared memory"
        rank = self.value(operands[2], "u32").astype(np.int64)
        assert (rank[self.mask] < self.blocks).all(), "a block that the cluster has not"
        kind = "u64" if rest[-1] == "u64" else "u32"
        found = self.address(operands[1]) % ALIGN + (rank + 1) * ALIGN
        self.put(operands[0], found.astype(TYPES[kind]))

    def do_getctarank(self, _: tuple[str, ...], operands: tuple[str, ...]) -> None:
        far = self.address(operands[1]) // ALIGN
        self.put(operands[0], np.where(far > 0, far - 1, self.rank).astype(np.uint32))

    def do_fence(self, rest: tuple[str, ...], operands: tuple[str, ...]) -> None:
        super().do_fence(rest, operands)
        if rest[0] == "mbarrier_init" and self.phased:
            words = self.shared.words(np.array(list(self.phased)), BYTES).reshape(-1)
            self.shared.fence(np.flatnonzero(self.mask), words)
            self.set_up[self.mask] = self.step  # also a relaxed arrival of these threads tells of it

    def _set_up(self, place: int, who: Array, given: tuple[str, ...]) -> None:
        assert len(who) == 1, "several threads set up one barrier"
        assert place not in self.phased or self.phased[place].phase == -1, "a barrier that is set up twice"
        count = int(self.value(given[0], "u32")[who[0]])
        self.shared.store(who, np.array([place]), np.zeros((1, BYTES), np.uint8))
        self.phased[place] = Phased(place, count, self.clocks.agent(), count)

    def barrier(self, place: int, who: Array) -> Phased:
        """The barrier at a place, which these threads have seen set up."""
        assert place in self.phased, "a barrier that was not set up"
        words = self.shared.words(np.array([place]), BYTES)
        self.shared.expect_visible(who, np.repeat(words, len(who), 0))
        rank = place // max(self.shared.size, 1)
        assert (self.place[self.rank == rank] < self.end).any(), "a barrier of a block that has ended"
        if (self.rank[who] != rank).any():
            self.shared.expect_fenced(words)
        return self.phased[place]

    def _arrive_at(self, one: Phased, rest: tuple[str, ...], who: Array, given: tuple[str, ...]) -> None:
        if "expect_tx" in rest:
            one.bytes += int(self.value(given[0], "u32")[who].astype(np.int64).sum())
            given = given[1:]
        if rest[0] == "complete_tx":
            one.bytes -= int(self.value(given[0], "u32")[who].astype(np.int64).sum())
        if rest[0] == "arrive":
            count = int(self.value(given[0], "u32")[who].astype(np.int64).sum()) if given else len(who)
            assert count <= one.pending, "more arrivals at a barrier than its phase is for"
            one.pending -= count
            if "relaxed" not in rest:
                one.told = joined(one.told, self.clocks.release(who, self.step))
        self.end_phase(one)

    def end_phase(self, one: Phased) -> None:
        """If all have arrived, those who wait go on."""
        if one.pending == 0 and one.bytes == 0:
            one.phase, one.pending = one.phase + 1, one.count
            arrived = np.zeros(one.agent + 1, np.int32)
            arrived[one.agent] = self.step
            one.told = joined(one.told, arrived)
            for threads in one.asleep:
                self.waiting[threads] = False
            one.asleep = []

    def _wait(self, rest: tuple[str, ...], target: str, threads: Array, places: Array, given: tuple[str, ...]) -> None:
        ended = np.zeros(self.threads, np.bool_)
        for place in np.unique(places):
            who = threads[places == place]
            one = self.barrier(int(place), who)
            if "parity" in rest:
                ended[who] = (one.phase & 1) != (self.value(given[0], "u32")[who] & np.uint32(1))
            else:
                ended[who] = one.phase > self.value(given[0], "b64")[who].astype(np.int64)
            done, late = who[ended[who]], who[~ended[who]]
            if "relaxed" not in rest:
                self.clocks.acquire(done, one.told)
            if rest[0] == "try_wait":
                again = late[self.asked[late]]
                self.waiting[again] = True
                self.place[again] -= 1  # to ask once more
                one.asleep.append(again)
            elif len(late):
                self.lag[late] += 1
                self.proceed()
        self.lag[threads[ended[threads]]] = 0
        told = self.mask & ~(self.asked & ~ended) if rest[0] == "try_wait" else self.mask
        self.asked[threads] = ~ended[threads]
        self.mask, self.full = told, False
        if told.any():
            self.put(target, ended)
