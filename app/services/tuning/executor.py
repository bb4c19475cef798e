"""Runs one tune job: its shapes in turn, each promoted when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from app.devices.fleet import Unit
from app.devices.process import CallStopped
from app.errors import ChildLost, Closing, DeviceError, TilewiseError
from app.observability.tracing import traced
from app.services.best.lookup import BestConfigs, gflops, timing_of
from app.services.best.misses import MissCounter
from app.services.tuning.progress import JobProgress
from app.services.tuning.request import TuneSpec
from app.services.tuning.shape_tuner import ShapeTuner, TuningContext
from app.store.records import BestRecord, JobRecord, TrialRecord
from app.store.repository import JobRepository
from app.tuning.search import bayesian
from kernels import KERNELS
from kernels.device import Device
from kernels.problem import Problem

_LOG = logging.getLogger(__name__)
TuneTarget = tuple[Unit, Problem]
AwaitDefaults = Callable[[Unit, Callable[[], bool]], None]


class JobExecutor:
    """Runs jobs; `total` seconds were spent on them, `inside` of these in workers."""

    def __init__(
        self, context: TuningContext, misses: MissCounter, await_defaults: AwaitDefaults, units: Sequence[Unit]
    ) -> None:
        self.inside = self.total = 0.0
        self._units = units
        self._context, self._misses, self._await_defaults = context, misses, await_defaults

    def run(self, job: JobRecord, spec: TuneSpec, progress: JobProgress, targets: Sequence[TuneTarget]) -> None:
        """Tune every target within the job's budget, and end the job; one that is interrupted stays as it is.

        A job that was cancelled ends so.
        """
        database, jobs = self._context.database, self._context.jobs
        if job.cancel_requested or jobs.is_cancelled(job.id) or (spec.idle and self._is_needless(job, targets)):
            self._finish(job.id, "cancelled")
            return
        if spec.strategy == "auto":
            bayesian.preload()
        self._await_workers(targets, progress)
        total = sum(progress.max_trials)
        if not database.write(lambda session: JobRepository(session).start(job.id, total, datetime.now(UTC))):
            return  # cancelled while it was queued
        progress.start()
        jobs.notify(job.id)
        results: dict[int, dict[str, Any]] = {}
        while pending := progress.pending_shapes():
            for number in pending:
                if progress.interrupted():
                    break
                progress.begin(number)
                tuner = ShapeTuner(self._context, job.id, spec, *targets[number], progress)
                self._tune_shape(job, tuner, spec, results, number)
            if progress.interrupted() and progress.pending_shapes():
                if jobs.is_cancelled(job.id):
                    self._finish(job.id, "cancelled", results, spent=progress.elapsed)
                return
        best = any("kernel" in result for result in results.values())
        self._finish(job.id, "succeeded" if best else "failed", results, spent=progress.elapsed)

    def fail(self, job_id: str, error: Exception) -> None:
        """End a job with its error."""
        if isinstance(error, TilewiseError):
            failure = _problem(error)
        else:
            failure = {"code": "internal", "error": "the service has a fault: see its log"}
            _LOG.error("job %s failed of a fault in the service", job_id, exc_info=error)
        self._finish(job_id, "failed", failure=failure)

    def _await_workers(self, targets: Sequence[TuneTarget], progress: JobProgress) -> None:
        """Wait for the trial workers, and after a start for the defaults' verification: neither is the job's time."""
        for unit in {unit.device.id: unit for unit, _ in targets}.values():
            self._await_defaults(unit, progress.interrupted)
            with suppress(DeviceError, Closing, CallStopped):  # the first trial says what is wrong
                unit.trials.start(progress.until_interrupted)

    def _is_needless(self, job: JobRecord, targets: Sequence[TuneTarget]) -> bool:
        """Whether a client's job has tuned meanwhile what this idle work would."""
        return all(
            is_exact(self._context.best, problem, unit.device.id) and not self._promoted_before(job, unit, problem)
            for unit, problem in targets
        )

    def _tune_shape(
        self, job: JobRecord, tuner: ShapeTuner, spec: TuneSpec, results: dict[int, dict[str, Any]], number: int
    ) -> None:
        """Tune one shape into `results`, or its error; neither if it is interrupted."""
        unit, problem, started = tuner.unit, tuner.problem, perf_counter()
        before = None if number in results else self._promoted_before(job, unit, problem)
        try:
            with traced("tune shape", {"tilewise.device": unit.device.id, "tilewise.problem": problem.key}):
                best = before or self._tuned(job, spec, tuner)
            if best is None:
                return
            results[number] = _result(best, unit.device)
            if tuner.serves:
                self._misses.drop(unit.device.model, problem)
        except TilewiseError as error:
            if tuner.progress.interrupted():
                return  # the interruption caused this too
            results[number] = {"problem": problem.key, "device": unit.device.id, **_problem(error)}
        finally:
            self.inside += tuner.inside
            self.total += perf_counter() - started
        tuner.progress.shape_finished()

    def _tuned(self, job: JobRecord, spec: TuneSpec, tuner: ShapeTuner) -> BestRecord | None:
        """Tune a shape; where its device is lost, go on with what was saved on an equal one. Raises as ShapeTuner."""
        unit = tuner.unit
        try:
            return tuner.tune()
        except ChildLost as error:
            place = unit.device.model, unit.device.environment
            equal = [one for one in self._units if (one.device.model, one.device.environment) == place]
            other = next((one for one in equal if one is not unit and one.trials.takes_calls), None)
            if other is None:
                raise
            _LOG.warning("%s; %s is tuned on %s", error.message, tuner.problem, other.device.id)
        moved = ShapeTuner(self._context, job.id, spec, other, tuner.problem, tuner.progress)
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
        "device_model": winner.device_model,
        "instructions": KERNELS[trial.kernel].instructions(winner.problem, device),
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
