"""The Runner protocol: runs trials on a device, or replays a recording; and a runner that remembers what it proved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from app.tuning.budget import Forecast
from app.tuning.outcome import FORECAST, VENDOR, Conditions, Outcome, Rejected
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

# What is timed: one config of a kernel, or the vendor's own product of a problem.
Contender: TypeAlias = Launch | Problem


class OutOfTime(Exception):
    """The budget's seconds are over. The contender at hand is not to blame."""


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

    All but `prepare`, `is_built` and `finals` raise OutOfTime at the end of the budget's seconds.
    """

    @property
    def width(self) -> int:
        """Builds that can be compiled at once: a batch of this size keeps the compilers busy."""
        ...

    def prepare(self, launch: Launch) -> None:
        """Start to compile the launch's binary in parallel, if that is possible; returns at once."""
        ...

    def is_built(self, launch: Launch) -> bool:
        """Whether an attempt of a prepared launch need not wait for its binary."""
        ...

    def await_build(self, launches: Sequence[Launch], most: float = math.inf) -> None:
        """Wait until an attempt of one of these prepared launches need not wait for its binary, or `most` seconds."""
        ...

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        """Compile, verify and time one candidate; sampling ends early if it is clearly slower than `best` seconds.

        A candidate that crashes or hangs its process is Rejected.
        """
        ...

    def finals(self) -> None:
        """Called once the search is over."""
        ...

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """Verify a finalist on ragged neighbours of the shape, zeros, integers, NaN and infinities; None: it holds."""
        ...

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Time contenders that have been attempted, each once a round, in random order, on cold rotating buffers.

        Raises DeviceError if a contender takes its process down.
        """
        ...


@dataclass(slots=True)
class ProvingRunner:
    """A runner that remembers which configs it has stress-verified."""

    runner: Runner
    held: set[tuple[str, Config]] = field(default_factory=set)

    @property
    def width(self) -> int:
        """The runner's."""
        return self.runner.width

    def prepare(self, launch: Launch) -> None:
        """As the runner."""
        self.runner.prepare(launch)

    def is_built(self, launch: Launch) -> bool:
        """As the runner."""
        return self.runner.is_built(launch)

    def await_build(self, launches: Sequence[Launch], most: float = math.inf) -> None:
        """As the runner."""
        self.runner.await_build(launches, most)

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        """As the runner."""
        return self.runner.attempt(contender, best)

    def finals(self) -> None:
        """As the runner."""
        self.runner.finals()

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """As the runner, and take note."""
        rejected = self.runner.stress_verify(launch)
        if rejected is None:
            self.held.add((launch.kernel, launch.config))
        return rejected

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """As the runner."""
        return self.runner.sample(contenders, rounds)


def unaffordable(
    contender: Contender | Rejected, forecast: Callable[[Contender], Forecast], left: float
) -> Rejected | None:
    """Say that a trial is forecast to take longer than is left; None: it fits, or is none."""
    if isinstance(contender, Rejected):
        return None
    expected = forecast(contender)
    if expected.trial <= left:
        return None
    kernel, config = (contender.kernel, contender.config) if isinstance(contender, Launch) else (VENDOR, Config(()))
    reason = (
        f"its trial is forecast to take {_told(expected.trial)}: {_told(expected.build)} until it can be launched, "
        f"{_told(expected.launch)} for each of two launches; {_told(left)} are left"
    )
    return Rejected(kernel, config, FORECAST, reason)


def _told(seconds: float) -> str:
    return f"{max(0.0, seconds):{'.0f' if seconds >= 10 else '.2g'}} s"  # noqa: PLR2004  two figures
