"""A running job's progress and estimated time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from app.devices.process import NEVER, CallLimit
from app.tuning.budget import Budget

PREPARING: Final = "preparing"
SEARCH: Final = "search"
FINALS: Final = "finals"
GRACE: Final = 0.6  # seconds that a launch has to end once its job is cancelled; a worker that is killed costs two
_LATE: Final = 0.4  # seconds after the budget's end that whatever has not ended of itself is killed
_FINALISTS: Final = 8  # that are verified once more, which takes each about as long as a trial
_FINALS: Final = (1.0, 5.0)  # seconds for which the finals of a shape take samples, at least and at most
_FINALS_SHARE: Final = 0.2  # of a shape's seconds that are left to its finals
_FEWEST: Final = 3  # trials before a rate means anything


class JobProgress:
    """The progress of one job, shape by shape, kept by the job's thread; `increase_budget` is for other threads.

    `budget` is each shape's, `max_trials` the trials that each takes at most, `needs` the seconds that one trial of
    each is forecast to take, `weights` how what these leave is shared (evenly without), `spent` the seconds that
    earlier processes gave the job. `interrupted` says whether to
    stop, `grace` how many seconds a launch then has to end. `clock` is the monotonic one.
    """

    def __init__(
        self,
        budget: Budget,
        max_trials: Sequence[int],
        interrupted: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        needs: Sequence[float] = (),
        weights: Sequence[float] = (),
        spent: float = 0.0,
        grace: Callable[[], float] = lambda: GRACE,
    ) -> None:
        self.budget, self.max_trials = budget, max_trials
        self.interrupted = interrupted
        self.trials = 0
        self._clock, self._grace = clock, grace
        self._needs = needs or [0.0] * len(max_trials)
        self._weights = weights if any(weights) else [1.0] * len(max_trials)
        self._changing = threading.Lock()
        self._closed = False
        self._current_budget = budget
        self._spent_budgets: dict[int, Budget] = {}  # of each shape that is done
        self._shape, self._done, self._seconds, self._phase = 0, 0, 0.0, PREPARING
        self._spent, self._started = spent, clock()
        self._began = self._since = self._started
        self._estimated: tuple[float, float] | None = None  # seconds left, and when that was
        self._interrupted_at: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds spent on the job so far, by earlier processes too."""
        return self._spent + self._clock() - self._started

    @property
    def seconds(self) -> float | None:
        """The job's budget of seconds; None if they are not limited."""
        each = self.budget.of_kernel(1).seconds
        return None if each is None else each * len(self.max_trials)

    def start(self) -> None:
        """Count the job's time from now."""
        self._started = self._clock()

    def begin(self, shape: int) -> None:
        """Begin a shape, by its number."""
        self._shape, self._done, self._phase, self._current_budget = shape, 0, PREPARING, self.budget
        self._began = self._since = self._clock()

    def resumed(self, trials: int) -> None:
        """Count the trials of the shape that were saved before."""
        self._done = trials

    def kernel_budget(self, kernels: int) -> Budget:
        """The budget of each of the shape's kernels as of now; its seconds are the shape's, from its begin."""
        self._current_budget = self.budget
        return replace(self._current_budget.of_kernel(kernels), seconds=self._shape_limit())

    def until_interrupted(self) -> CallLimit:
        """When the worker is asked to stop, and when it is killed, if the job is interrupted."""
        if self._interrupted_at is None and self.interrupted():
            self._interrupted_at = self._clock()
        at = self._interrupted_at
        return NEVER if at is None else CallLimit(at, at + self._grace())

    def until(self) -> CallLimit:
        """When the worker is asked to stop, and when it is killed: as interrupted, else by the budget."""
        interrupted = self.until_interrupted()
        if interrupted is not NEVER:
            return interrupted
        share = self._shape_limit()
        return NEVER if share is None else CallLimit(self._began + share, self._began + share + _LATE)

    def _shape_limit(self) -> float | None:
        """Seconds of the shape under way: what one trial is forecast to take, and its part of what that leaves."""
        total = self.seconds
        if total is None:
            return None
        left = [shape for shape in range(len(self.max_trials)) if self._is_left(shape)]
        elapsed = self._spent + self._began - self._started
        spare = total - elapsed - sum(self._needs[shape] for shape in left)
        return max(0.0, min(total - elapsed, self._needs[self._shape] + spare * self._part(left)))

    def _part(self, left: Sequence[int]) -> float:
        """The part of the shape under way of what is left to some shapes."""
        total = sum(self._weights[shape] for shape in left)
        return self._weights[self._shape] / total if total and self._shape in left else 1 / max(1, len(left))

    def shape_finished(self) -> None:
        """Take note that the shape is done, with the budget that was read last."""
        self._spent_budgets[self._shape] = self._current_budget

    def pending_shapes(self) -> list[int]:
        """The shapes that are not done with the present budget; once there are none, it cannot be increased."""
        with self._changing:
            left = [shape for shape in range(len(self.max_trials)) if self._is_left(shape)]
            self._closed = not left
            return left

    def increase_budget(self, budget: Budget, max_trials: Sequence[int]) -> bool:
        """Set a larger budget, for the shapes that are done too; False if the job is about to end."""
        with self._changing:
            if not self._closed:
                self.budget, self.max_trials = budget, max_trials
            return not self._closed

    def times(self) -> tuple[float | None, float]:
        """The seconds left, None if they cannot be estimated, and the seconds spent."""
        return self.eta_seconds(), self.elapsed

    def trial_finished(self) -> float | None:
        """Count a trial; gives the seconds left, for the job's row."""
        now = self._clock()
        self._phase = SEARCH
        self._done, self.trials = self._done + 1, self.trials + 1
        self._seconds += now - self._since
        self._since = now
        return self._estimate()

    def enter(self, phase: str) -> float | None:
        """Enter a phase of the shape, search or finals; gives the seconds left, for the job's row."""
        self._phase = phase
        return self._estimate()

    def eta_seconds(self) -> float | None:
        """Seconds left by the last estimate and the budget; None if there is no estimate, or they are over."""
        estimated = inf if self._estimated is None else self._estimated[0] - (self._clock() - self._estimated[1])
        left = min(estimated, self._budget_left())
        return left if 0 < left < inf else None

    def _budget_left(self) -> float:
        return inf if self.seconds is None else self.seconds - self.elapsed

    def _estimate(self) -> float | None:
        """Estimate the seconds that the job may still take, by its limits and its rate; gives what is left of them."""
        budget = self.budget.of_kernel(1)
        self._estimated = None
        if self.trials >= _FEWEST and (budget.seconds is not None or budget.trials is not None):
            rate = self._seconds / self.trials
            others = [
                trials for shape, trials in enumerate(self.max_trials) if shape != self._shape and self._is_left(shape)
            ]
            left = self._shape_seconds(rate, self._shape_limit())
            left += sum(_seconds_of_shape(trials, rate, budget.seconds) for trials in others)
            self._estimated = left, self._clock()
        return self.eta_seconds()

    def _is_left(self, shape: int) -> bool:
        return self._spent_budgets.get(shape) != self.budget

    def _shape_seconds(self, rate: float, limit: float | None) -> float:
        trials = self.max_trials[self._shape]
        if self._phase == FINALS:
            return _finals_seconds(trials, rate, limit)
        left = rate * max(0, trials - self._done)
        if limit is not None:
            left = min(left, max(0.0, (1 - _FINALS_SHARE) * limit - (self._clock() - self._began)))
        return left + _finals_seconds(trials, rate, limit)


def _seconds_of_shape(trials: int, rate: float, limit: float | None) -> float:
    return _search_seconds(trials, rate, limit) + _finals_seconds(trials, rate, limit)


def _search_seconds(trials: int, rate: float, limit: float | None) -> float:
    return rate * trials if limit is None else min(rate * trials, (1 - _FINALS_SHARE) * limit)


def _finals_seconds(trials: int, rate: float, limit: float | None) -> float:
    least, most = _FINALS
    sampling = min(max(least, _search_seconds(trials, rate, limit) * _FINALS_SHARE / (1 - _FINALS_SHARE)), most)
    return min(_FINALISTS, trials) * rate + (sampling if limit is None else min(sampling, _FINALS_SHARE * limit))
