"""A running job's progress and estimated time left, on however many devices its shapes are tuned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from app.devices.process import NEVER, CallLimit
from app.store.records import DeviceProgress
from app.tuning.budget import Budget

PREPARING: Final = "preparing"
SEARCH: Final = "search"
FINALS: Final = "finals"
GRACE: Final = 0.6  # seconds that a launch has to end once its job is cancelled; a worker that is killed costs two
LATE: Final = 0.4  # seconds after the budget's end that whatever has not ended of itself is killed
_FINALISTS: Final = 8  # that are verified once more, which takes each about as long as a trial
_FINALS: Final = (1.0, 5.0)  # seconds for which the finals of a shape take samples, at least and at most
_FINALS_SHARE: Final = 0.2  # of a shape's seconds that are left to its finals
_FEWEST: Final = 3  # trials before a rate means anything


@dataclass(frozen=True, slots=True)
class JobTimes:
    """The seconds that a job may still take, None if they cannot be estimated, those spent, and on which devices."""

    eta_seconds: float | None
    elapsed: float
    devices: tuple[DeviceProgress, ...] = ()


class JobProgress:
    """The progress of one job, whose shapes are claimed by the threads of devices. Every method is for any thread.

    `budget` is each shape's, `max_trials` the trials that each takes at most, `needs` the seconds that one trial of
    each is forecast to take, `weights` how what these leave is shared (evenly without), `spent` the seconds that
    earlier processes gave the job. Seconds are a device's: two devices spend two in one of the clock's. `interrupted`
    says whether to stop, `grace` how many seconds a launch then has to end. `clock` is the monotonic one.
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
        self.failure: Exception | None = None
        self.clock = clock
        self._interrupted, self._grace = interrupted, grace
        self._needs = needs or [0.0] * len(max_trials)
        self._weights = weights if any(weights) else [1.0] * len(max_trials)
        self._lock = threading.RLock()
        self._closed = False
        self._spent_budgets: dict[int, Budget] = {}  # of each shape that is done
        self._running: dict[int, ShapeProgress] = {}
        self._spent, self._seconds = spent, 0.0
        self._devices: dict[str, DeviceProgress] = {}
        self._estimated: tuple[float, float] | None = None  # seconds left, and when that was
        self._interrupted_at: float | None = None

    def interrupted(self) -> bool:
        """Whether the job is to stop, a fault of the service on one of its devices included."""
        return self.failure is not None or self._interrupted()

    @property
    def trials(self) -> int:
        """Trials of this process."""
        with self._lock:
            return sum(device.trials for device in self._told())

    @property
    def elapsed(self) -> float:
        """Seconds spent on the job's shapes so far, by earlier processes too."""
        with self._lock:
            return self._spent + sum(shape.elapsed for shape in self._running.values())

    @property
    def seconds(self) -> float | None:
        """The job's budget of seconds; None if they are not limited."""
        each = self.budget.of_kernel(1).seconds
        return None if each is None else each * len(self.max_trials)

    def begin(self, shape: int, device: str) -> ShapeProgress:
        """Begin a shape, by its number, on a device."""
        with self._lock:
            self._devices.setdefault(device, DeviceProgress(device))
            begun = ShapeProgress(self, shape, device)
            self.limit(begun)  # from now on it is promised this much
            self._running[shape] = begun
            return begun

    def claim(self, takes: Callable[[int], bool], device: str) -> ShapeProgress | None:
        """Begin the first pending shape that no device has begun and that `takes` accepts; None if there is none."""
        with self._lock:
            if self.interrupted():
                return None
            found = next(filter(takes, self.free_shapes()), None)
            return None if found is None else self.begin(found, device)

    def end(self, ended: ShapeProgress, *, done: bool) -> None:
        """Take note that no device works on a shape any more; `done`: with the budget that was read last."""
        with self._lock:
            self._running.pop(ended.shape, None)
            self._spent += ended.elapsed
            self._devices[ended.device] = self._with_shape(ended, done=done)
            if done:
                self._spent_budgets[ended.shape] = ended.budget

    def pending_shapes(self) -> list[int]:
        """The shapes that are not done with the present budget; once there are none, it cannot be increased."""
        with self._lock:
            left = [shape for shape in range(len(self.max_trials)) if self._is_left(shape)]
            self._closed = not left
            return left

    def free_shapes(self) -> list[int]:
        """The pending shapes that no device is at."""
        with self._lock:
            return [shape for shape in self.pending_shapes() if shape not in self._running]

    def increase_budget(self, budget: Budget, max_trials: Sequence[int]) -> bool:
        """Set a larger budget, for the shapes that are done too; False if the job is about to end."""
        with self._lock:
            if not self._closed:
                self.budget, self.max_trials = budget, max_trials
            return not self._closed

    def times(self) -> JobTimes:
        """The job's times as of now."""
        with self._lock:
            return JobTimes(self.eta_seconds(), self.elapsed, tuple(self._told()))

    def until_interrupted(self) -> CallLimit:
        """When the worker is asked to stop, and when it is killed, if the job is interrupted."""
        if self._interrupted_at is None and self.interrupted():
            self._interrupted_at = self.clock()
        at = self._interrupted_at
        return NEVER if at is None else CallLimit(at, at + self._grace())

    def limit(self, shape: ShapeProgress) -> float | None:
        """Seconds of a shape under way: what one trial is forecast to take, and its part of what that leaves.

        What other devices were promised for their shapes is not given again.
        """
        with self._lock:
            total = self.seconds
            if total is None:
                return None
            others = [other for other in self._running.values() if other is not shape]
            claimed = {other.shape for other in others}
            left = [each for each in range(len(self.max_trials)) if self._is_left(each) and each not in claimed]
            free = total - self._spent - sum(max(other.promised, other.elapsed) for other in others)
            need = self._needs[shape.shape]
            spare = free - sum(self._needs[each] for each in left)
            shape.promised = max(0.0, min(free, need + spare * self._part(shape.shape, left)))
            return shape.promised

    def eta_seconds(self) -> float | None:
        """Seconds left by the last estimate and the budget; None if there is no estimate, or they are over."""
        with self._lock:
            estimated = inf if self._estimated is None else self._estimated[0] - (self.clock() - self._estimated[1])
            left = min(estimated, self._budget_left())
            return left if 0 < left < inf else None

    def estimate(self) -> float | None:
        """Estimate the seconds that the job may still take, by its limits and its rate; gives what is left of them."""
        with self._lock:
            budget, told = self.budget.of_kernel(1), self._told()
            trials = sum(device.trials for device in told)
            self._estimated = None
            if trials >= _FEWEST and (budget.seconds is not None or budget.trials is not None):
                self._estimated = self._seconds_left(self._seconds / trials, budget.seconds), self.clock()
            return self.eta_seconds()

    def add_trial_seconds(self, seconds: float) -> None:
        """Add what a trial took to what the rate is of."""
        with self._lock:
            self._seconds += seconds

    def _seconds_left(self, rate: float, limit: float | None) -> float:
        running = self._running.values()
        waiting = [
            trials
            for shape, trials in enumerate(self.max_trials)
            if shape not in self._running and self._is_left(shape)
        ]
        left = sum(shape.seconds_left(self.max_trials[shape.shape], rate) for shape in running)
        left += sum(_seconds_of_shape(trials, rate, limit) for trials in waiting)
        return left / max(1, len(running))

    def _budget_left(self) -> float:
        return inf if self.seconds is None else (self.seconds - self.elapsed) / max(1, len(self._running))

    def _is_left(self, shape: int) -> bool:
        return self._spent_budgets.get(shape) != self.budget

    def _part(self, shape: int, left: Sequence[int]) -> float:
        """The part of a shape of what is left to some shapes."""
        total = sum(self._weights[each] for each in left)
        return self._weights[shape] / total if total and shape in left else 1 / max(1, len(left))

    def _told(self) -> list[DeviceProgress]:
        """What each device has done, the shape that it is at included."""
        at = {shape.device: shape for shape in self._running.values()}
        return [
            self._with_shape(at[name], done=False) if name in at else known for name, known in self._devices.items()
        ]

    def _with_shape(self, shape: ShapeProgress, *, done: bool) -> DeviceProgress:
        known = self._devices[shape.device]
        trials, seconds = known.trials + shape.trials, known.seconds + shape.elapsed
        return replace(known, shapes=known.shapes + done, trials=trials, seconds=seconds)


class ShapeProgress:
    """The progress of the shape that a device is at, kept by the device's thread.

    `budget` is the job's as it was read last, `trials` those of this device, `promised` the seconds that the shape may
    take of the job's.
    """

    def __init__(self, job: JobProgress, shape: int, device: str) -> None:
        self.shape, self.device, self.budget = shape, device, job.budget
        self.trials = 0
        self.promised = 0.0
        self.interrupted, self.until_interrupted = job.interrupted, job.until_interrupted
        self._job, self._resumed, self._phase = job, 0, PREPARING
        self._began = self._since = job.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._job.clock() - self._began

    @property
    def job_elapsed(self) -> float:
        """Seconds spent on the job so far."""
        return self._job.elapsed

    @property
    def job_seconds(self) -> float | None:
        """The job's budget of seconds; None if they are not limited."""
        return self._job.seconds

    def resumed(self, trials: int) -> None:
        """Count the trials of the shape that were saved before."""
        self._resumed = trials

    def kernel_budget(self, kernels: int) -> Budget:
        """The budget of each of the shape's kernels as of now; its seconds are the shape's, from its begin."""
        self.budget = self._job.budget
        return replace(self.budget.of_kernel(kernels), seconds=self._job.limit(self))

    def until(self) -> CallLimit:
        """When the worker is asked to stop, and when it is killed: as interrupted, else by the budget."""
        interrupted = self.until_interrupted()
        if interrupted is not NEVER:
            return interrupted
        share = self._job.limit(self)
        return NEVER if share is None else CallLimit(self._began + share, self._began + share + LATE)

    def finish(self) -> None:
        """Take note that the shape is done, with the budget that was read last."""
        self._job.end(self, done=True)

    def give_up(self) -> None:
        """Leave the shape as it is, for whoever resumes it."""
        self._job.end(self, done=False)

    def trial_finished(self) -> float | None:
        """Count a trial; gives the seconds left, for the job's row."""
        now = self._job.clock()
        self._phase = SEARCH
        self.trials += 1
        self._job.add_trial_seconds(now - self._since)
        self._since = now
        return self._job.estimate()

    def enter(self, phase: str) -> float | None:
        """Enter a phase of the shape, search or finals; gives the seconds left, for the job's row."""
        self._phase = phase
        return self._job.estimate()

    def seconds_left(self, max_trials: int, rate: float) -> float:
        """The seconds that it may still take at `rate` seconds a trial."""
        limit = self._job.limit(self)
        if self._phase == FINALS:
            return _finals_seconds(max_trials, rate, limit)
        left = rate * max(0, max_trials - self._resumed - self.trials)
        if limit is not None:
            left = min(left, max(0.0, (1 - _FINALS_SHARE) * limit - self.elapsed))
        return left + _finals_seconds(max_trials, rate, limit)


def _seconds_of_shape(trials: int, rate: float, limit: float | None) -> float:
    return _search_seconds(trials, rate, limit) + _finals_seconds(trials, rate, limit)


def _search_seconds(trials: int, rate: float, limit: float | None) -> float:
    return rate * trials if limit is None else min(rate * trials, (1 - _FINALS_SHARE) * limit)


def _finals_seconds(trials: int, rate: float, limit: float | None) -> float:
    least, most = _FINALS
    sampling = min(max(least, _search_seconds(trials, rate, limit) * _FINALS_SHARE / (1 - _FINALS_SHARE)), most)
    return min(_FINALISTS, trials) * rate + (sampling if limit is None else min(sampling, _FINALS_SHARE * limit))
