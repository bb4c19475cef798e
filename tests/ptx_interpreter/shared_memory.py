"""The shared memory of the blocks that machine.py runs together: its banks, and who may see whose accesses.

Bytes are NaN until they are written. What a thread wrote no other may read or write, and what it read no other may
write, unless a barrier, or an arrival that was waited for, is between: threads go on together here, on a GPU they need
not. What threads wrote, asynchronous operations (wgmma, bulk copies) may use after a fence between the two; and bulk
copies may overwrite what threads loaded after a fence of theirs, or once wgmmas are over that took it: a load may be on
its way while its thread arrives at a barrier.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.ptx_interpreter.clocks import NEVER, Clocks
from tests.ptx_interpreter.program import WARP, Array
from tests.ptx_interpreter.registers import ALIGN

SEVERAL: Final = -1
PATTERN: Final = 1024  # bytes after which swizzles begin anew: each block's memory begins with one
WORD: Final = 4
BANKS: Final = 32


class Shared:
    """`size` bytes for each of a cluster's blocks, one after the other; `grain` bytes are what accesses are told by."""

    def __init__(self, size: int, ranks: Array, clocks: Clocks, blocks: int = 1, grain: int = WORD) -> None:
        self.size, self.limit = -(-size // PATTERN) * PATTERN, size
        self.ranks, self.blocks, self.grain, self.clocks = ranks, blocks, grain, clocks
        self.bytes = np.full(self.size * blocks, 0xFF, np.uint8)
        count = -(-self.size * blocks // grain)
        self.wrote, self.writer = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self.read, self.reader = (np.zeros((clocks.warps, count), np.int32) for _ in range(2))
        self.taken: dict[int, Array] = {}  # when each agent last began to read each word
        self.fresh = np.zeros(count, np.bool_)  # written by threads, and no fence since for what is asynchronous
        self.loading = np.zeros((clocks.warps, count), np.bool_)  # by threads of a warp, and no fence since
        self.copying = np.zeros(count, np.int16)  # by how many bulk copies that still read
        self.step = self.conflicts = 0

    def places(self, threads: Array, first: Array, near: bool = True) -> Array:
        """Addresses of the threads' own blocks, or of any of a cluster's, as places in `bytes`."""
        rank = first // ALIGN - 1
        assert not near or (rank < 0).all(), "an address in another block's shared memory"
        own = first % ALIGN
        assert not len(own) or int(own.max()) < max(self.limit, 1), "an access past the end of shared memory"
        return own if self.blocks == 1 else own + np.where(rank < 0, self.ranks[threads], rank) * self.size

    def load(self, threads: Array, places: Array, size: int) -> Array:
        """What each of `threads` reads from its place on: a row of bytes for each."""
        words, who = self.words(places, size), threads[:, None]
        self.expect_visible(threads, words)
        warps = who // WARP
        index = warps * self.read.shape[1] + words
        times, readers = self.read.reshape(-1), self.reader.reshape(-1)
        before = np.where(times[index] > self.clocks.floor, readers[index], who)
        times[index], readers[index] = self.step, who
        readers[index[(readers[index] != who) | (before != who)]] = SEVERAL
        self.loading[warps, words] = True
        return self.bytes[places[:, None] + np.arange(size)]

    def store(self, threads: Array, places: Array, content: Array) -> None:
        """Each of `threads` writes its row of bytes."""
        words = self.words(places, content.shape[1])
        self.expect_free(threads, words)
        self.wrote[words], self.writer[words], self.fresh[words] = self.step, threads[:, None], True
        self.bytes[places[:, None] + np.arange(content.shape[1])] = content

    def words(self, places: Array, size: int) -> Array:
        assert (places % size == 0).all(), "an access to shared memory that is not aligned"
        inside = places >= 0 if self.size == 0 else (places >= 0) & (places % self.size + size <= self.limit)
        assert inside.all(), "an access past the end of shared memory"
        return places[:, None] // self.grain + np.arange(max(1, size // self.grain))

    def mark_read(self, thread: int, words: Array) -> None:
        """A thread has read these words."""
        self.read[thread // WARP, words], self.reader[thread // WARP, words] = self.step, thread

    def expect_visible(self, threads: Array, words: Array) -> None:
        """The threads have seen who wrote these words: a row for each."""
        late = self.clocks.unseen(threads, self.writer[words], self.wrote[words])
        assert not late.any(), "a read of what another thread wrote, and no barrier"

    def expect_free(self, threads: Array, words: Array) -> None:
        """The threads have seen all that was read and written in these words, and nothing is copied from there."""
        assert not self.copying[words].any(), "a write to what a bulk copy still reads"
        late = self.clocks.unseen(threads, self.writer[words], self.wrote[words])
        assert not late.any(), "a write to what another thread wrote, and no barrier"
        for agent, times in self.taken.items():
            waited = times[words] <= self.clocks.seen[threads, agent][:, None]
            assert waited.all(), "a write to what a wgmma reads, and no wait for it"
        times = self.read[:, words]
        if (times > self.clocks.floor).any():
            self._expect_read(threads, words, times)

    def _expect_read(self, threads: Array, words: Array, times: Array) -> None:
        clocks = self.clocks
        warp, row, column = np.nonzero(times > clocks.floor)
        when, who, reader = times[warp, row, column], threads[row], self.reader[warp, words[row, column]]
        late = when > clocks.seen[who, np.where(reader < 0, warp * WARP, reader)]
        # Of what several threads of a warp read, all must have been seen.
        many = np.flatnonzero(reader < 0)
        lanes = warp[many, None] * WARP + np.arange(WARP)
        late[many] = (when[many, None] > clocks.seen[who[many, None], lanes]).any(1)
        assert not late.any(), "a write to what another thread read, and no barrier"

    def meet(self, threads: Array, first: Array, size: int) -> None:
        """Count how often those of `threads` that are served together meet on a bank.

        Half a warp is served at once where each thread wants 8 bytes, a quarter where it wants 16.
        """
        served, words = threads // (WORD * BANKS // max(size, WORD)), first // WORD
        wanted = np.sort((served * BANKS + words % BANKS) * NEVER + words)
        banks = wanted // NEVER
        met = banks[1:][(banks[1:] == banks[:-1]) & (wanted[1:] != wanted[:-1])]
        self.conflicts += len(np.unique(met // BANKS))

    def take(self, agent: int, words: Array) -> None:
        """An agent begins to read these words."""
        if agent not in self.taken:
            self.taken[agent] = np.zeros(len(self.wrote), np.int32)
        self.taken[agent][words] = self.step

    def fence(self, threads: Array, words: Array | None = None) -> None:
        """What these threads have written or seen, in these words or all, is there for asynchronous operations."""
        at = np.flatnonzero(self.fresh) if words is None else words
        late = self.clocks.unseen(threads[:, None], self.writer[at][None], self.wrote[at][None])
        self.fresh[at[~late.all(0)]] = False
        if words is None:
            self.end_loads(threads)

    def end_loads(self, threads: Array) -> None:
        """What whole warps have loaded is in their registers."""
        warps, counts = np.unique(threads // WARP, return_counts=True)
        self.loading[warps[counts == WARP]] = False

    def expect_loaded(self, words: Array) -> None:
        assert not self.loading[:, words].any(), "an asynchronous write to what threads load, and no fence.proxy.async"

    def expect_fenced(self, words: Array) -> None:
        assert not self.fresh[words].any(), "an asynchronous read of what threads wrote, and no fence.proxy.async"
