"""Outcome of a trial: measured, or rejected at a stage for a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kernels.space import Config

VENDOR: Final = "vendor"  # the name of the vendor's library among kernels
FORECAST: Final = "forecast"  # the stage of what was not tried because it would have taken longer than was left


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one launch: the median of `samples` launches and its 95 % interval, in milliseconds.

    The interval is None if a single sample says nothing of its spread. `policy` names how launches were timed:
    figures of two policies are not compared. `limited` says that a time limit ended the sampling before the interval's
    half-width was under 2 % of the median, `dropped` that sampling ended because the config was clearly slower.
    """

    median_ms: float
    ci95_ms: tuple[float, float] | None
    samples: int
    limited: bool = False
    dropped: bool = False
    policy: str = "events"

    @property
    def half_width(self) -> float | None:
        """Half the interval's width over the median."""
        if self.ci95_ms is None or not self.median_ms:
            return None
        return (self.ci95_ms[1] - self.ci95_ms[0]) / 2 / self.median_ms


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Error against the float64 product: relative L2, and the largest |error|_ij / (|a_i| |b_j|)."""

    relative_l2: float
    max_scaled: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """The state of the device during sampling: medians of its sensors; None for one that it does not have.

    Clocks in MHz, power in watts, temperature in degrees Celsius; `throttled` names the reasons for lower clocks.
    """

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """What compiling a config took, and what its launch takes; None where neither compiler nor driver tells.

    `seconds` are the compiler's, when it made the binary that is launched. Registers and `local_bytes`, spills among
    them, are a thread's; `shared_bytes` and `max_threads` a block's; `constant_bytes` the function's. The launch has
    `grid` blocks of `block` threads, x then y.
    """

    seconds: float | None = None
    registers: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    constant_bytes: int | None = None
    max_threads: int | None = None
    grid: int | None = None
    block: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A config that compiled, answered right and was timed; `seconds` are its samples, in the order they were taken.

    The vendor's library is kernel "vendor" with an empty config, and nothing was compiled.
    """

    kernel: str
    config: Config
    timing: Timing
    accuracy: Accuracy
    compilation: Compilation | None = None
    seconds: tuple[float, ...] = field(default=(), repr=False)

    @property
    def registers(self) -> int | None:
        """Registers of a thread; None if unknown."""
        return None if self.compilation is None else self.compilation.registers


@dataclass(frozen=True, slots=True)
class Rejected:
    """A config that was not timed: at `stage` (space, forecast, compile, launch, verify, measure), for `reason`.

    `compilation` is of one that compiled.
    """

    kernel: str
    config: Config
    stage: str
    reason: str
    compilation: Compilation | None = field(default=None, repr=False)


Outcome = Measured | Rejected


@dataclass(frozen=True, slots=True)
class FinalReport:
    """The result of a tune's finals: samples taken again, interleaved and in random order.

    `finalists` are the fastest of the search with the samples that chose among them, fastest first. `best`, `default`,
    `vendor` and `baselines` (naive, tiled) were measured once more in one round after the choice, interleaved with each
    other: their timings are reported. `default` is the untuned choice for the problem; neither it nor a baseline is
    faster than `best`, which may be one of them. `reasons` has a sentence for each of default, vendor, naive and tiled
    that is missing. `wrong` are finalists that failed stress verification. `retaken` counts disturbed rounds.
    """

    finalists: tuple[Measured, ...]
    best: Measured
    default: Measured | None
    vendor: Measured | None
    baselines: Mapping[str, Measured]
    reasons: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[Rejected, ...] = ()
    conditions: Conditions | None = None
    retaken: int = 0


def best_of(outcomes: Iterable[Outcome]) -> Measured | None:
    """The fastest of our kernels by its median; the vendor's library is never the best."""
    ours = (outcome for outcome in outcomes if isinstance(outcome, Measured) and outcome.kernel != VENDOR)
    return min(ours, key=lambda outcome: outcome.timing.median_ms, default=None)
