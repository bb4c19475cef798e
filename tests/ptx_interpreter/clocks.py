"""Who has seen whose accesses: clocks of threads, and of what runs beside them, as PTX's memory model orders them.

An access is named by the step it was made in. A thread sees the accesses of another up to the step of the last release
(a barrier, an arrival) that it acquired. What runs beside threads (copies, tensor cores) is an agent, seen by those who
waited for it. L. Lamport, "Time, clocks, and the ordering of events in a distributed system", CACM 1978.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.ptx_interpreter.program import WARP, Array

NEVER: Final = 2**30  # the step of what nobody can have seen


class Clocks:
    """A row for each thread, a column for each thread and agent: up to which step the one sees the other's accesses."""

    def __init__(self, threads: int) -> None:
        self.threads, self.warps, self.floor = threads, -(-threads // WARP), 0
        self.agents = 0
        self._seen: Array | None = None

    @property
    def seen(self) -> Array:
        if self._seen is None:
            self._seen = np.zeros((self.threads, self.warps * WARP + 16), np.int32)
            np.fill_diagonal(self._seen, NEVER - 1)
        return self._seen

    def agent(self) -> int:
        """The column of a new agent."""
        self.agents += 1
        column = self.warps * WARP + self.agents - 1
        if column >= self.seen.shape[1]:
            self._seen = np.pad(self.seen, ((0, 0), (0, self.seen.shape[1])))
        return column

    def unseen(self, threads: Array, who: Array, when: Array) -> Array:
        """Whether accesses (rows of them for each thread) came from others, after all that the thread has seen."""
        late = when > self.floor
        if self.agents:
            late = late | (who >= self.warps * WARP)
        if late.any():
            late = late & (when > self.seen[threads.reshape(-1, *[1] * (who.ndim - 1)), who])
        return late

    def together(self, threads: Array, step: int) -> None:
        """All of these threads see what each of them has done and seen up to now."""
        if len(threads) == self.threads:
            self.floor = step
            if self.agents == 0:
                return
        self.acquire(threads, self.release(threads, step))

    def release(self, threads: Array, step: int) -> Array:
        """What those who acquire it will have seen."""
        told: Array = self.seen[threads].max(0)
        told[threads] = step
        return told

    def acquire(self, threads: Array, told: Array) -> None:
        """These threads see what was released."""
        seen, width = self.seen, len(told)
        seen[threads, :width] = np.maximum(seen[threads, :width], told)
        seen[threads, threads] = NEVER - 1

    def saw(self, threads: Array, agent: int, step: int) -> None:
        """These threads have waited for what an agent did."""
        self.seen[threads, agent] = np.maximum(self.seen[threads, agent], step)


def joined(one: Array, other: Array) -> Array:
    """What was released by both."""
    both = np.zeros(max(len(one), len(other)), np.int32)
    both[: len(one)] = one
    both[: len(other)] = np.maximum(both[: len(other)], other)
    return both
