"""A running job's budget, progress and estimated time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from app.devices.process import NEVER, CallLimit
from app.tuning.budget import Budget

TRIALS: Final = 64  # a kernel, where an order says nothing
SECONDS: Final = 20.0  # a shape, where an order says nothing
PREPARING: Final = "preparing"
SEARCH: Final = "search"
FINALS: Final = "finals"
GRACE: Final = 0.6  # seconds that a launch has to end once its job is cancelled; a child that is killed costs two
_LATE: Final = 0.4  # seconds after the budget's end that whatever has not ended of itself is killed
_FINALISTS: Final = 8  # that are verified once more, which takes each about as long as a trial
_FINALS: Final = (1.0, 5.0)  # seconds for which the finals of a shape take samples, at least and at most
_SHARE: Final = 0.2  # of a shape's seconds that are left to its finals
_FEWEST: Final = 3  # trials before a rate means anything


@dataclass(frozen=True, slots=True)
class JobBudget:
    """What a job may spend on each of its shapes: trials of all kernels together, seconds, and when to be content.

    None is the default of 64 trials a kernel and 20 s; beside a `gain_percent` it is no limit.
    """

    trials: int | None = None
    seconds: float | None = None
    gain_percent: float | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> JobBudget:
        """Read it from a stored request."""
        return cls(request["trials"], request["seconds"], request.get("gain_percent"))

    def each(self, kernels: int) -> Budget:
        """A shape's budget: trials are shared among its kernels, at least one each."""
        limited = self.gain_percent is None
        trials = (TRIALS if limited else None) if self.trials is None else max(1, self.trials // kernels)
        seconds = (SECONDS if limited else None) if self.seconds is None else self.seconds
        return Budget(trials, seconds, self.gain_percent)

    def covers(self, other: JobBudget, kernels: int) -> bool:
        """Whether whoever spends this has spent the other too."""
        mine, theirs = _reach(self.each(kernels)), _reach(other.each(kernels))
        return all(one >= another for one, another in zip(mine, theirs, strict=True))


def budget_seconds(request: Mapping[str, Any]) -> float | None:
    """The seconds of a whole job, by its stored request; None where they are not limited."""
    each = JobBudget.of(request).each(1).seconds
    return None if each is None else each * len(request["problems"]) * len(request["devices"])


def _reach(budget: Budget) -> tuple[float, float, float]:
    """How far a budget goes, in three directions in which more is stricter."""
    trials, seconds = budget.trials or inf, budget.seconds or inf
    return trials, seconds, -(budget.gain_percent or 0.0)


class JobProgress:
    """One job as its own thread works it off, shape after shape; only `raise_to` is for other threads.

    `expected` are the trials that each shape takes at most, `needs` the seconds that one trial of each is forecast to
    take, `spent` the seconds that an earlier process gave the job. `interrupted` says whether to stop where it is,
    `grace` how many seconds a launch then has to end. `clock` is the monotonic one.
    """

    def __init__(
        self,
        allowance: JobBudget,
        expected: Sequence[int],
        interrupted: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        needs: Sequence[float] = (),
        spent: float = 0.0,
        grace: Callable[[], float] = lambda: GRACE,
    ) -> None:
        self.allowance, self.expected = allowance, expected
        self.interrupted = interrupted
        self.trials = 0
        self._clock, self._grace = clock, grace
        self._needs = needs or [0.0] * len(expected)
        self._changing = threading.Lock()
        self._closed = False
        self._handed = allowance
        self._given: dict[int, JobBudget] = {}  # what each shape that is done was given
        self._shape, self._done, self._seconds, self._phase = 0, 0, 0.0, PREPARING
        self._spent, self._started = spent, clock()
        self._began = self._since = self._started
        self._told: tuple[float, float] | None = None  # seconds left, and when that was
        self._interrupted_at: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds spent on the job so far, by earlier processes too."""
        return self._spent + self._clock() - self._started

    @property
    def seconds(self) -> float | None:
        """The job's budget of seconds; None where they are not limited."""
        each = self.allowance.each(1).seconds
        return None if each is None else each * len(self.expected)

    def start(self) -> None:
        """The job's time counts from now."""
        self._started = self._clock()

    def begin(self, shape: int) -> None:
        """The shape of that number is next."""
        self._shape, self._done, self._phase, self._handed = shape, 0, PREPARING, self.allowance
        self._began = self._since = self._clock()

    def resumed(self, trials: int) -> None:
        """So many trials of the shape were saved before."""
        self._done = trials

    def budget(self, kernels: int) -> Budget:
        """What the shape may take of each kernel, and the seconds it may take from its begin, as of now."""
        self._handed = self.allowance
        return replace(self._handed.each(kernels), seconds=self._share())

    def until_interrupted(self) -> CallLimit:
        """When the child is to end what it does, and when it is killed, where the job is interrupted."""
        if self._interrupted_at is None and self.interrupted():
            self._interrupted_at = self._clock()
        at = self._interrupted_at
        return NEVER if at is None else CallLimit(at, at + self._grace())

    def until(self) -> CallLimit:
        """When the child is to end what it does, and when it is killed: as interrupted, else by the budget."""
        interrupted = self.until_interrupted()
        if interrupted is not NEVER:
            return interrupted
        share = self._share()
        return NEVER if share is None else CallLimit(self._began + share, self._began + share + _LATE)

    def _share(self) -> float | None:
        """Seconds of the shape under way: what one trial is forecast to take, and an even part of what that leaves."""
        total = self.seconds
        if total is None:
            return None
        left = [shape for shape in range(len(self.expected)) if self._is_left(shape)]
        elapsed = self._spent + self._began - self._started
        spare = total - elapsed - sum(self._needs[shape] for shape in left)
        return max(0.0, min(total - elapsed, self._needs[self._shape] + spare / max(1, len(left))))

    def ended(self) -> None:
        """The shape is done, with what it was given last."""
        self._given[self._shape] = self._handed

    def unsettled(self) -> list[int]:
        """The shapes that are still to be done, or to be done more of; none closes the job to `raise_to`."""
        with self._changing:
            left = [shape for shape in range(len(self.expected)) if self._is_left(shape)]
            self._closed = not left
            return left

    def raise_to(self, allowance: JobBudget, expected: Sequence[int]) -> bool:
        """Spend more from now on, on the shapes done already too; False where the job is about to end."""
        with self._changing:
            if not self._closed:
                self.allowance, self.expected = allowance, expected
            return not self._closed

    def times(self) -> tuple[float | None, float]:
        """The seconds that are left, where somebody can say, and those that were spent."""
        return self.eta_seconds(), self.elapsed

    def tried(self) -> float | None:
        """Take note that a trial is over; gives the seconds left, for the job's row."""
        now = self._clock()
        self._phase = SEARCH
        self._done, self.trials = self._done + 1, self.trials + 1
        self._seconds += now - self._since
        self._since = now
        return self._tell()

    def enter(self, phase: str) -> float | None:
        """Take note of what the shape does from now: search or finals; gives the seconds left, for the job's row."""
        self._phase = phase
        return self._tell()

    def eta_seconds(self) -> float | None:
        """Seconds left of those that were told last, and of the budget; None where nobody can say, or they are over."""
        told = inf if self._told is None else self._told[0] - (self._clock() - self._told[1])
        left = min(told, self._budget_left())
        return left if 0 < left < inf else None

    def _budget_left(self) -> float:
        return inf if self.seconds is None else self.seconds - self.elapsed

    def _tell(self) -> float | None:
        """The seconds that the job may still take, by its limits and its pace so far."""
        budget = self.allowance.each(1)
        self._told = None
        if self.trials >= _FEWEST and (budget.seconds is not None or budget.trials is not None):
            pace = self._seconds / self.trials
            others = (
                trials for shape, trials in enumerate(self.expected) if shape != self._shape and self._is_left(shape)
            )
            left = self._this(pace, self._share()) + sum(_whole(trials, pace, budget.seconds) for trials in others)
            self._told = left, self._clock()
        return self.eta_seconds()

    def _is_left(self, shape: int) -> bool:
        return self._given.get(shape) != self.allowance

    def _this(self, pace: float, limit: float | None) -> float:
        trials = self.expected[self._shape]
        if self._phase == FINALS:
            return _finals(trials, pace, limit)
        left = pace * max(0, trials - self._done)
        if limit is not None:
            left = min(left, max(0.0, (1 - _SHARE) * limit - (self._clock() - self._began)))
        return left + _finals(trials, pace, limit)


def _whole(trials: int, pace: float, limit: float | None) -> float:
    return _searching(trials, pace, limit) + _finals(trials, pace, limit)


def _searching(trials: int, pace: float, limit: float | None) -> float:
    return pace * trials if limit is None else min(pace * trials, (1 - _SHARE) * limit)


def _finals(trials: int, pace: float, limit: float | None) -> float:
    least, most = _FINALS
    sampling = min(max(least, _searching(trials, pace, limit) * _SHARE / (1 - _SHARE)), most)
    return min(_FINALISTS, trials) * pace + (sampling if limit is None else min(sampling, _SHARE * limit))
