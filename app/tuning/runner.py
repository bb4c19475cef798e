"""The Runner protocol: runs trials on a device, or replays a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from app.tuning.outcome import Conditions, Outcome, Rejected
from kernels.launch import Launch
from kernels.problem import Problem

# What is timed: one config of a kernel, or the vendor's own product of a problem.
Contender: TypeAlias = Launch | Problem


class OutOfTime(Exception):
    """The budget's seconds are over: what was being tried is not to blame, and nothing more can be tried."""


@dataclass(frozen=True, slots=True)
class InterleavedSamples:
    """Samples that contenders took in turn: `seconds[i]` are contender i's, one for each round, in order.

    Rounds in which the reference kernel was disturbed are not among them; `retaken` counts those.
    """

    seconds: tuple[tuple[float, ...], ...]
    policy: str
    conditions: Conditions | None = None
    retaken: int = 0


class Runner(Protocol):
    """Tries candidates of one problem on one device, one at a time.

    `attempt`, `stress_verify` and `sample` raise OutOfTime at the end of the budget's seconds, whatever they are at.

    `width` is how many builds can be under way at once: a batch of that size keeps the compilers busy.
    """

    @property
    def width(self) -> int:
        """How many builds can be under way at once."""
        ...

    def prepare(self, launch: Launch) -> None:
        """Have the launch's binary made ahead, in parallel, where that can be done; returns at once."""
        ...

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        """Compile, verify and time one candidate; sampling ends early where it is clearly slower than `best` seconds.

        Whatever the candidate does to its process is Rejected.
        """
        ...

    def finals(self) -> None:
        """Be told that the search is over."""
        ...

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """Verify a finalist on ragged neighbours of the shape, zeros, integers, NaN and infinities; None: it holds."""
        ...

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Time contenders that have been attempted, each once a round, in random order, on cold rotating buffers.

        Raises DeviceError where a contender takes its process down.
        """
        ...
