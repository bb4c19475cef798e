"""Runs tune jobs: each shape is promoted when it ends, on whichever device claimed it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, TypeAlias

from app.devices.fleet import Unit
from app.devices.process import CallStopped
from app.errors import ChildLost, Closing, DeviceError, StoreFailed, TilewiseError
from app.observability.tracing import traced
from app.services.best.lookup import BestConfigs, gflops, timing_of
from app.services.best.misses import MissCounter
from app.services.tuning.progress import JobProgress, ShapeProgress
from app.services.tuning.request import TuneSpec
from app.services.tuning.search_workers import SearchWorkers, search_processes
from app.services.tuning.shape_tuner import ShapeTuner, TuningContext
from app.store.records import BestRecord, JobRecord, TrialRecord
from app.store.repository import JobRepository
from app.tuning.search import bayesian
from kernels import KERNELS
from kernels.device import Device
from kernels.problem import Problem

TuneTarget: TypeAlias = tuple[Unit, Problem]
_LOG = logging.getLogger(__name__)
AwaitDefaults = Callable[[Unit, Callable[[], bool]], None]


def equal_units(unit: Unit, units: Sequence[Unit]) -> list[Unit]:
    """The unit, and the others whose device is of the same model and environment: what one measures holds for all."""
    place = unit.device.model, unit.device.environment
    others = [one for one in units if one is not unit and (one.device.model, one.device.environment) == place]
    return [unit, *(one for one in others if one.trials.takes_calls)]


class RunningJob:
    """A job whose shapes are tuned by the threads of one or more devices; every method is for any thread.

    A shape is tuned by the device of its target; a job that `spec` spreads, by any device equal to it. `results` are
    its shapes' so far, by number.
    """

    def __init__(
        self,
        job: JobRecord,
        spec: TuneSpec,
        progress: JobProgress,
        targets: Sequence[TuneTarget],
        units: Sequence[Unit],
    ) -> None:
        self.job, self.spec, self.progress, self.targets = job, spec, progress, targets
        self.results: dict[int, dict[str, Any]] = {}
        self._takes = [equal_units(unit, units) if spec.spread else [unit] for unit, _ in targets]
        self._lock = threading.Lock()
        self._devices = 0
        self._started: bool | None = None
        self._over = False

    @property
    def device_ids(self) -> list[str]:
        """The devices that may take part, those of the job's targets first."""
        own, others = [takes[0] for takes in self._takes], [unit for takes in self._takes for unit in takes[1:]]
        return list(dict.fromkeys(unit.device.id for unit in [*own, *others]))

    @property
    def is_worked_on(self) -> bool:
        """Whether a device takes part."""
        with self._lock:
            return self._devices > 0

    @property
    def is_over(self) -> bool:
        """Whether somebody has ended the job, or left it for the next start of the service."""
        with self._lock:
            return self._over

    def join(self) -> bool:
        """Take part in the job; False if it is over."""
        with self._lock:
            self._devices += not self._over
            return not self._over

    def leave(self) -> bool:
        """Take part no more; True for the one that is to end the job, since nobody does and nothing is left to do."""
        with self._lock:
            self._devices -= 1
            if self._devices or self._over or not self._is_done():
                return False
            self._over = True
            return True

    def start(self, write: Callable[[], bool]) -> bool:
        """Call `write` once, whoever comes first; gives what it gave: whether the job was not cancelled before."""
        with self._lock:
            if self._started is None:
                self._started = write()
            return self._started

    def has_work(self, unit: Unit) -> bool:
        """Whether a shape is left that a unit may tune and nobody is at."""
        return any(unit in self._takes[shape] for shape in self.progress.free_shapes())

    def claim(self, unit: Unit) -> ShapeProgress | None:
        """Begin the next shape on a unit; None if there is none for it, or the job is interrupted.

        What an equal device can tune is left to it by one that takes no calls.
        """

        def takes(shape: int) -> bool:
            units = self._takes[shape]
            others = (one for one in units if one is not unit and one.trials.takes_calls)
            return unit in units and (unit.trials.takes_calls or not any(others))

        return self.progress.claim(takes, unit.device.id)

    def _is_done(self) -> bool:
        pending = self.progress.pending_shapes()
        return not pending or self.progress.interrupted() or self._started is False


class JobExecutor:
    """Runs jobs, each on one device or more; `total` seconds of devices were spent, `inside` of these in workers."""

    def __init__(
        self, context: TuningContext, misses: MissCounter, await_defaults: AwaitDefaults, units: Sequence[Unit]
    ) -> None:
        self.inside = self.total = 0.0
        self._units = units
        self._context, self._misses, self._await_defaults = context, misses, await_defaults
        self._adding = threading.Lock()
        self._search_workers = SearchWorkers(search_processes(units))

    def start(self) -> None:
        """Start the processes that search beside a device's trials, and return at once."""
        if any(unit.width > 1 for unit in self._units):
            self._search_workers.start()

    def close(self) -> None:
        """End the processes that search."""
        self._search_workers.close()

    def take_part(self, running: RunningJob, unit: Unit) -> None:
        """Tune a job's shapes on a unit until none is left for it; the last unit to leave ends the job.

        A job that is interrupted stays as it is; one that was cancelled ends so. Raises, as the last one, what failed.
        """
        try:
            self._tune_shapes(running, unit)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's
            running.progress.failure = error
        if running.leave():
            self._conclude(running)

    def _tune_shapes(self, running: RunningJob, unit: Unit) -> None:
        if running.spec.strategy == "auto":
            bayesian.preload()
        if not running.has_work(unit):
            return
        if not self._is_cancelled(running.job):
            self._await_worker(unit, running.progress)
        if not running.start(lambda: self._start(running)):
            return
        while (shape := running.claim(unit)) is not None:
            problem = running.targets[shape.shape][1]
            tuner = self._tuner(running.job, running.spec, unit, problem, shape)
            self._tune_shape(running, tuner)

    def _tuner(
        self, job: JobRecord, spec: TuneSpec, unit: Unit, problem: Problem, progress: ShapeProgress
    ) -> ShapeTuner:
        factory = self._search_workers.factory(unit.device.id)
        return ShapeTuner(self._context, job.id, spec, unit, problem, progress, factory)

    def _start(self, running: RunningJob) -> bool:
        """Store that a job runs; False if it was cancelled before, or a client's has done what this idle work would."""
        job, total = running.job, sum(running.progress.max_trials)
        if self._is_cancelled(job) or (running.spec.idle and self._is_needless(job, running.targets)):
            return False
        is_started = self._context.database.write(
            lambda session: JobRepository(session).start(job.id, total, datetime.now(UTC))
        )
        self._context.jobs.notify(job.id)
        return is_started

    def _is_cancelled(self, job: JobRecord) -> bool:
        return job.cancel_requested or self._context.jobs.is_cancelled(job.id)

    def _conclude(self, running: RunningJob) -> None:
        """End a job that no device works on any more, unless the service ends before it is done."""
        job, progress = running.job, running.progress
        if progress.failure is not None:
            raise progress.failure
        if progress.pending_shapes():
            if self._context.jobs.is_cancelled(job.id) or not running.start(lambda: True):
                self._finish(job.id, "cancelled", running.results, spent=progress.elapsed)
            return
        best = any("kernel" in result for result in running.results.values())
        self._finish(job.id, "succeeded" if best else "failed", running.results, spent=progress.elapsed)

    def fail(self, job_id: str, error: Exception) -> None:
        """End a job with its error."""
        if isinstance(error, TilewiseError):
            failure = _problem(error)
        else:
            failure = {"code": "internal", "error": "the service has a fault: see its log"}
            _LOG.error("job %s failed of a fault in the service", job_id, exc_info=error)
        self._finish(job_id, "failed", failure=failure)

    def _await_worker(self, unit: Unit, progress: JobProgress) -> None:
        """Wait for the trial worker, and after a start for the defaults' verification: neither is the job's time."""
        self._await_defaults(unit, progress.interrupted)
        with suppress(DeviceError, Closing, CallStopped):  # the first trial says what is wrong
            unit.trials.start(progress.until_interrupted)

    def _is_needless(self, job: JobRecord, targets: Sequence[TuneTarget]) -> bool:
        """Whether a client's job has tuned meanwhile what this idle work would."""
        return all(
            is_exact(self._context.best, problem, unit.device.id) and not self._promoted_before(job, unit, problem)
            for unit, problem in targets
        )

    def _tune_shape(self, running: RunningJob, tuner: ShapeTuner) -> None:
        """Tune one shape into the job's results, or its error; neither if it is interrupted."""
        unit, problem, number, started = tuner.unit, tuner.problem, tuner.progress.shape, perf_counter()
        leave = tuner.progress.give_up
        try:
            before = None if number in running.results else self._promoted_before(running.job, unit, problem)
            with traced("tune shape", {"tilewise.device": unit.device.id, "tilewise.problem": problem.key}):
                best = before or self._tuned(running.job, running.spec, tuner)
            if best is None:
                return
            running.results[number] = _result(best, unit.device)
            if tuner.serves:
                self._misses.drop(unit.device.model, problem)
            leave = tuner.progress.finish
        except TilewiseError as error:
            if tuner.progress.interrupted():
                return  # the interruption caused this too
            if self._context.claims is not None and isinstance(error, StoreFailed):
                raise  # the job is taken up again, here or elsewhere, with what was saved
            running.results[number] = {"problem": problem.key, "device": unit.device.id, **_problem(error)}
            leave = tuner.progress.finish
        finally:
            leave()
            with self._adding:
                self.inside += tuner.inside
                self.total += perf_counter() - started

    def _tuned(self, job: JobRecord, spec: TuneSpec, tuner: ShapeTuner) -> BestRecord | None:
        """Tune a shape; where its device is lost, go on with what was saved on an equal one. Raises as ShapeTuner."""
        try:
            return tuner.tune()
        except ChildLost as error:
            other = next((one for one in equal_units(tuner.unit, self._units)[1:]), None)
            if other is None:
                raise
            _LOG.warning("%s; %s is tuned on %s", error.message, tuner.problem, other.device.id)
        moved = self._tuner(job, spec, other, tuner.problem, tuner.progress)
        try:
            return self._tuned(job, spec, moved)
        finally:
            tuner.inside_elsewhere += moved.inside

    def _promoted_before(self, job: JobRecord, unit: Unit, problem: Problem) -> BestRecord | None:
        """The winner that this job promoted before an earlier process died."""
        record = self._context.best.record(unit.device.model, problem)
        return record if record is not None and record.trial.job_id == job.id else None

    def _finish(
        self,
        job_id: str,
        state: str,
        results: Mapping[int, dict[str, Any]] | None = None,
        failure: dict[str, Any] | None = None,
        spent: float | None = None,
    ) -> None:
        told = sorted((results or {}).items(), key=lambda item: ("kernel" not in item[1], item[0]))
        result = {"best": [each for _, each in told]} if told else None
        first = told[0][1] if told and state == "failed" else None
        error = failure or (dict(first) if first else None)
        more = {} if spent is None else {"spent_seconds": spent}
        self._context.jobs.end(job_id, state, result, error, **more)


def is_exact(best: BestConfigs, problem: Problem, device_id: str) -> bool:
    """Whether a problem has been tuned under the conditions of today."""
    try:
        answer = best.answer(problem, device_id)
    except TilewiseError:
        return False
    return answer.match == "exact" and not answer.provisional


def _problem(error: TilewiseError) -> dict[str, Any]:
    return {"code": error.code, "error": error.message}


def _result(winner: BestRecord, device: Device) -> dict[str, Any]:
    """One shape's winner with the figures of its report round: each an object, or null and a reason."""
    trial, result = winner.trial, dict[str, Any]()
    for name in ("naive", "tiled", "default", "vendor"):
        other: TrialRecord | None = getattr(winner, name)
        result[name] = None if other is None else _figure(other)
        result[f"{name}_reason"] = getattr(winner, f"{name}_reason")
    vendor = winner.vendor
    faster = None if vendor is None else (vendor.median_ms or 0.0) < (trial.median_ms or 0.0)
    return {
        "problem": winner.problem.key,
        "device": device.id,
        "device_model": winner.device_model,
        "instructions": KERNELS[trial.kernel].instructions,
        **_figure(trial),
        **result,
        "vendor_is_faster": faster,
    }


def _figure(trial: TrialRecord) -> dict[str, Any]:
    timing = timing_of(trial)
    return {
        "kernel": trial.kernel,
        "config": dict(trial.config),
        "median_ms": trial.median_ms,
        "ci95_ms": timing and timing.ci95_ms and list(timing.ci95_ms),
        "samples": trial.samples,
        "limited": trial.limited,
        "gflops": gflops(trial.problem, timing),
    }
