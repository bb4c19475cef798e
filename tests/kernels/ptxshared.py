"""The shared memory of one block of ptxmachine's: its copies under way, its banks, and who may see whose writes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
NOBODY: Final = -1
SEVERAL: Final = -2
WORD: Final = 4
BANKS: Final = 32


class Shared:
    """Bytes that are NaN until they are written; a copy under way makes its place NaN until it is waited for.

    What a thread wrote since the last barrier no other may read, and what it read no other may write: threads go on
    together here, on a GPU they need not.
    """

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.writers, self.readers = (np.full(-(-size // WORD), NOBODY, np.int32) for _ in range(2))
        self.groups: list[list[tuple[Array, Array, Array]]] = [[]]
        self.conflicts = 0

    def load(self, threads: Array, first: Array, size: int) -> Array:
        """What each of `threads` reads from its `first` byte on: a row of bytes for each."""
        words = self._words(first, size)
        writers, readers, who = self.writers[words], self.readers[words], threads[:, None]
        assert ((writers == NOBODY) | (writers == who)).all(), "a read of what another thread wrote, and no barrier"
        self.readers[words] = who
        several = (self.readers[words] != who) | ((readers != NOBODY) & (readers != who))
        self.readers[words[several]] = SEVERAL
        self._count(first, size)
        return self.bytes[first[:, None] + np.arange(size)]

    def store(self, threads: Array, first: Array, content: Array) -> None:
        """Each of `threads` writes its row of bytes."""
        self._mark(threads, first, content.shape[1])
        self.bytes[first[:, None] + np.arange(content.shape[1])] = content

    def send(self, threads: Array, first: Array, content: Array) -> None:
        """Each of `threads` starts a copy of its row of bytes."""
        self._mark(threads, first, content.shape[1])
        self.bytes[first[:, None] + np.arange(content.shape[1])] = 0xFF
        self.groups[-1].append((threads, first, content))

    def sent(self) -> None:
        self.groups.append([])

    def wait(self, left: int) -> None:
        """Copies arrive, all but those of the last `left` groups."""
        while len(self.groups) > left + 1:
            for copy in self.groups.pop(0):
                self.store(*copy)

    def barrier(self) -> None:
        self.writers[:] = NOBODY
        self.readers[:] = NOBODY

    def _mark(self, threads: Array, first: Array, size: int) -> None:
        words = self._words(first, size)
        readers, who = self.readers[words], threads[:, None]
        assert ((readers == NOBODY) | (readers == who)).all(), "a write to what another thread read, and no barrier"
        self.writers[words] = who

    def _words(self, first: Array, size: int) -> Array:
        assert (first >= 0).all()
        assert (first % size == 0).all(), "an access to shared memory that is not aligned"
        return first[:, None] // WORD + np.arange(max(1, size // WORD))

    def _count(self, first: Array, size: int) -> None:
        """Half a warp is served at once where each thread wants 8 bytes, a quarter where it wants 16."""
        together = WORD * BANKS // size
        words = np.pad(first // WORD, (0, -len(first) % together), mode="edge").reshape(-1, together)
        banks = np.sort(words % BANKS * len(self.bytes) + words, axis=1)
        met = (np.diff(banks, axis=1) != 0) & (np.diff(banks // len(self.bytes), axis=1) == 0)
        self.conflicts += int(met.any(1).sum())
