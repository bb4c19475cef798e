"""Results of tuning as files have them: one space's configs with their times, and the bests of problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import median
from typing import Any, Final, TypeAlias

from kernels.problem import Problem
from kernels.space import Config

Value: TypeAlias = bool | int | float | str

FAILURES: Final = ("constraints", "compile", "runtime", "timeout", "correctness")
OWN: Final = "tilewise"  # the member that other formats carry our own figures in
MOST_RESULTS: Final = 200_000
_MOST_SAMPLES: Final = 10_000
_MOST_PARAMETERS: Final = 64
_LONGEST_NAME: Final = 200
_LONGEST_TEXT: Final = 4000


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """One config's outcome: its time in milliseconds with the samples that it is the mean of, or how it failed.

    `values` are in the order of the space's parameters. `extra` is what else the file says of it, by Kernel Tuner's
    names where it has one. `line` is where it stands in the file. Raises ValueError unless it has a time or failed.
    """

    values: tuple[Value, ...]
    time_ms: float | None = None
    samples_ms: tuple[float, ...] = field(default=(), repr=False)
    failure: str | None = None
    reason: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if (self.time_ms is None) == (self.failure is None):
            raise ValueError("a config has a time or a failure")
        if self.failure is not None and self.failure not in FAILURES:
            raise ValueError(f"a failure is one of {', '.join(FAILURES)}, got {shown(self.failure)}")
        for time in (*self.samples_ms, *((self.time_ms,) if self.time_ms is not None else ())):
            if not (isfinite(time) and time > 0):
                raise ValueError(f"a time is a positive number of milliseconds, got {time}")
        if len(self.samples_ms) > _MOST_SAMPLES:
            raise ValueError(f"a config has at most {_MOST_SAMPLES} samples, got {len(self.samples_ms)}")
        if self.reason is not None and len(self.reason) > _LONGEST_TEXT:
            raise ValueError(f"a reason has at most {_LONGEST_TEXT} characters, got {len(self.reason)}")

    @property
    def median_ms(self) -> float | None:
        """The median that was told, else that of the samples, else the time; None if it failed."""
        own = self.extra.get(OWN)
        told = own.get("median_ms") if isinstance(own, dict) else None
        if isinstance(told, float | int) and not isinstance(told, bool) and isfinite(told) and told > 0:
            return float(told)
        return median(self.samples_ms) if self.samples_ms and self.time_ms is not None else self.time_ms

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """The median's 95 % interval where the file tells it."""
        own = self.extra.get(OWN)
        return interval_of(own.get("ci95_ms")) if isinstance(own, dict) else None


@dataclass(frozen=True, slots=True)
class TuningResults:
    """The outcomes of one kernel's configs on one problem and device, as one file has them.

    `problem` is None where the file does not say it; `size` is the size as it is written there. `choices` are the
    values of each parameter that were tried. Raises ValueError for names or counts that no tuner writes.
    """

    device: str
    kernel: str
    parameters: tuple[str, ...]
    results: tuple[ConfigResult, ...] = field(repr=False)
    problem: Problem | None = None
    size: tuple[int, ...] = ()
    choices: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, repr=False)
    objective: str = "time"
    digest: str | None = None
    environment: str | None = None
    policy: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        for name in (self.device, self.kernel, self.objective, *self.parameters):
            if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
                raise ValueError(f"a name has 1 to {_LONGEST_NAME} printable characters, got {shown(name)}")
        if not 1 <= len(self.parameters) <= _MOST_PARAMETERS or len(set(self.parameters)) < len(self.parameters):
            raise ValueError(f"a space has 1 to {_MOST_PARAMETERS} parameters, each once")
        if len(self.results) > MOST_RESULTS:
            raise ValueError(f"a file has at most {MOST_RESULTS} configs")
        if any(len(one.values) != len(self.parameters) for one in self.results):
            raise ValueError("a config has a value for each parameter")

    @property
    def best(self) -> ConfigResult | None:
        """The fastest config, the first of equals; None if every one failed."""
        measured = [one for one in self.results if one.median_ms is not None]
        return min(measured, key=lambda one: one.median_ms or 0.0, default=None)

    def config(self, result: ConfigResult) -> Config:
        """A result's config, as our spaces have configs; raises ValueError for values that are no integers."""
        if not all(type(value) is int for value in result.values):
            raise ValueError("a parameter's value is no integer")
        return Config(tuple(zip(self.parameters, result.values, strict=True)))  # type: ignore[arg-type]

    def members(self, result: ConfigResult) -> dict[str, Value]:
        """A result's values by parameter."""
        return dict(zip(self.parameters, result.values, strict=True))

    def origin(self) -> dict[str, Any]:
        """What other formats have no member for: the problem, and what the times were measured with."""
        told = {"digest": self.digest, "environment": self.environment, "policy": self.policy}
        problem = {} if self.problem is None else {"problem": self.problem.key}
        return problem | {name: value for name, value in told.items() if value is not None}

    def with_origin(self, members: object) -> TuningResults:
        """The same with what `origin` gave; raises ValueError for members that it does not give."""
        if not isinstance(members, dict) or not all(isinstance(value, str) for value in members.values()):
            raise ValueError(f"the member {OWN} is an object of texts")
        known = {"problem", "digest", "environment", "policy"}
        if unknown := sorted(members.keys() - known):
            raise ValueError(f"the member {OWN} has no {shown(unknown[0])}")
        told: dict[str, Any] = dict(members)
        if "problem" in told:
            told["problem"] = problem_of(told["problem"])
        return replace(self, **told)


@dataclass(frozen=True, slots=True)
class BestResult:
    """The best that a service knew for one problem on one device model, and what was measured beside it.

    `beside` are medians in milliseconds by name: vendor, default, naive, tiled.
    """

    device: str
    problem: Problem
    kernel: str
    config: Config
    time_ms: float
    tuned_at: str
    interval_ms: tuple[float, float] | None = None
    samples: int = 0
    digest: str | None = None
    environment: str | None = None
    policy: str | None = None
    beside: Mapping[str, float] = field(default_factory=dict)
    line: int = field(default=0, compare=False)

    def results(self) -> TuningResults:
        """The same as results of a space of which one config is known."""
        own: dict[str, Any] = {"median_ms": self.time_ms, "samples": self.samples, "tuned_at": self.tuned_at}
        if self.interval_ms is not None:
            own["ci95_ms"] = list(self.interval_ms)
        only = ConfigResult(tuple(self.config.values()), self.time_ms, extra={OWN: own}, line=self.line)
        told = self.digest, self.environment, self.policy
        sizes = size_of(self.problem)
        return TuningResults(
            self.device, self.kernel, tuple(self.config), (only,), self.problem, sizes, {}, "time", *told
        )


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """All that one file holds."""

    spaces: tuple[TuningResults, ...]
    bests: tuple[BestResult, ...] = ()

    @property
    def count(self) -> int:
        """How many configs and bests there are."""
        return len(self.bests) + sum(len(space.results) for space in self.spaces)


def size_of(problem: Problem) -> tuple[int, ...]:
    """A problem's size as other programs have it: m, n and k, and the batch where there is one."""
    return (problem.m, problem.n, problem.k, *((problem.batch,) if problem.batch > 1 else ()))


def problem_of(key: object) -> Problem:
    """A problem by its key; raises ValueError."""
    if not isinstance(key, str):
        raise ValueError("a problem's key is a text")
    try:
        found = Problem.of_key(key)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{shown(key)} is no problem's key, such as float32/strict/nn/1x512x512x512") from error
    if found.key != key or max(found.m, found.n, found.k, found.batch) >= 2**31:
        raise ValueError(f"{shown(key)} is no problem's key")
    return found


def interval_of(value: object) -> tuple[float, float] | None:
    """An interval of milliseconds, or None for what is none."""
    if not isinstance(value, Sequence) or len(value) != 2 or isinstance(value, str):  # noqa: PLR2004 - both ends
        return None
    low, high = value
    if not all(type(end) in {float, int} and isfinite(end) for end in (low, high)) or low > high:
        return None
    return float(low), float(high)


def shown(value: object) -> str:
    """A value of a file for a sentence, cut to a few characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line's worth
