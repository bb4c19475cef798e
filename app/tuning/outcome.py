"""Outcome: what became of one config tried on one problem and device. A failure is a value with stage and reason."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.space import Config


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one launch takes: the median of `samples` launches and its 95 % interval, in milliseconds.

    `limited` says that a time limit ended the sampling before the interval's half-width was under 2 % of the median.
    """

    median_ms: float
    ci95_ms: tuple[float, float]
    samples: int
    limited: bool = False

    @property
    def half_width(self) -> float:
        """Half the interval's width over the median."""
        return (self.ci95_ms[1] - self.ci95_ms[0]) / 2 / self.median_ms if self.median_ms else 0.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error against the float64 product: relative L2, and the largest |error|_ij / (|a_i| |b_j|)."""

    relative_l2: float
    max_scaled: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A config that compiled, answered right and was timed."""

    kernel: str
    config: Config
    timing: Timing
    accuracy: Accuracy
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A config that was not timed: at `stage` (space, compile, launch, verify, measure), for `reason`."""

    kernel: str
    config: Config
    stage: str
    reason: str


Outcome = Measured | Rejected
