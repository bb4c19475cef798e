"""Tuning as durable jobs: one thread a device takes them in order; what a job measured is saved before it is told."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from app.devices.fleet import Fleet, Unit
from app.errors import Invalid, QueueFull, TilewiseError, TooLarge, UnknownKernel, Unsupported
from app.services.attempts import Attempts, expected
from app.services.best import BestConfigs, covering, gflops, timing_of
from app.services.jobs import Jobs, new_job
from app.services.principal import Principal
from app.store.engine import Database
from app.store.records import BestRecord, JobRecord
from app.store.repository import Bests
from app.store.repository import Jobs as JobRows
from app.tuning.search import STRATEGIES
from kernels import CATALOGUE
from kernels.problem import Problem

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TuneOrder:
    """What to tune: problems, where (None: the first device of each model), with what, and how much of it.

    `trials` and `seconds` cover the whole job, shared evenly among its shapes; None means 64 trials a kernel and
    20 s a shape.
    """

    problems: tuple[Problem, ...]
    device: str | None = None
    kernels: tuple[str, ...] | None = None
    strategy: str = "auto"
    trials: int | None = None
    seconds: float | None = None
    retune: bool = False


class Tuning:
    """Takes tune orders and works them off. `submit` blocks for a transaction, never for a device.

    Of `total` seconds spent on jobs, `inside` were spent compiling, verifying and measuring.
    """

    def __init__(self, database: Database, fleet: Fleet, best: BestConfigs, jobs: Jobs, *, queue: int) -> None:
        self._database, self._fleet, self._best, self._jobs = database, fleet, best, jobs
        self.inside = self.total = 0.0
        self._limit = queue
        self._closing = threading.Event()
        self._queues: dict[str, SimpleQueue[str | None]] = {unit.device.id: SimpleQueue() for unit in fleet.units}
        self._threads: list[threading.Thread] = []
        self._submitting = threading.Lock()

    def start(self) -> None:
        """Take up the jobs that an earlier process left unfinished, oldest first, then wait for more."""
        for job in self._database.read(lambda session: JobRows(session).unfinished()):
            if job.kind == "tune":
                self._enqueue(job)
        for device_id, queue in self._queues.items():
            thread = threading.Thread(target=self._work, args=(queue,), name=f"tune {device_id}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End after the trial under way, which is broken off; unfinished jobs stay and resume at the next start."""
        self._closing.set()
        for unit in self._fleet.units:
            if unit.trials is not unit.products:
                unit.trials.close()
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def submit(self, order: TuneOrder, principal: Principal) -> JobRecord:
        """Join the job that does the same work, or create one.

        Raises UnknownDevice, NoDevice, UnknownKernel, Unsupported, TooLarge, Invalid, QueueFull.
        """
        request = self._resolve(order)
        fingerprint = sha256(json.dumps([principal.name, request], sort_keys=True).encode()).hexdigest()
        with self._submitting:
            joined = self._database.read(lambda session: self._same(JobRows(session), fingerprint, order, request))
            if joined is not None:
                return joined
            waiting = sum(queue.qsize() for queue in self._queues.values())
            if waiting >= self._limit:
                raise QueueFull(f"{waiting} jobs wait already", limit=self._limit, size=waiting)
            job = new_job("tune", request, fingerprint)
            self._database.write(lambda session: JobRows(session).add(job))
            self._enqueue(job)
        return job

    def _resolve(self, order: TuneOrder) -> dict[str, Any]:
        """The order with every default made explicit: equal work gives equal text."""
        if order.strategy not in STRATEGIES:
            raise Invalid(f"strategy must be one of {', '.join(STRATEGIES)}, got {order.strategy!r}")
        for name in order.kernels or ():
            if name not in CATALOGUE:
                raise UnknownKernel(f"there is no kernel {name}; there are {', '.join(CATALOGUE)}")
        units = self._units(order.device)
        for unit in units:
            for problem in order.problems:
                _check(problem, unit, order.kernels)
        shapes = len(order.problems)
        return {
            "problems": [_as_json(problem) for problem in order.problems],
            "devices": [unit.device.id for unit in units],
            "kernels": list(order.kernels) if order.kernels else None,
            "strategy": order.strategy,
            "trials": max(1, order.trials // shapes) if order.trials else None,
            "seconds": order.seconds / shapes if order.seconds else None,
        }

    def _units(self, device_id: str | None) -> list[Unit]:
        first = self._fleet.unit(device_id)
        if device_id is not None:
            return [first]
        models: dict[str, Unit] = {}
        for unit in self._fleet.units:
            models.setdefault(unit.device.model, unit)
        return list(models.values())

    def _same(self, rows: JobRows, fingerprint: str, order: TuneOrder, request: dict[str, Any]) -> JobRecord | None:
        active = rows.active(fingerprint)
        if active is not None or order.retune:
            return active
        exact = all(
            self._is_exact(problem, device_id) for problem in order.problems for device_id in request["devices"]
        )
        return rows.finished(fingerprint) if exact else None

    def _is_exact(self, problem: Problem, device_id: str) -> bool:
        try:
            return self._best.answer(problem, device_id).match == "exact"
        except TilewiseError:
            return False

    def _enqueue(self, job: JobRecord) -> None:
        """Queue a job with its first device's thread; a device that is gone leaves it to the first thread there is."""
        first = job.request["devices"][0]
        queue = self._queues.get(first) or next(iter(self._queues.values()), None)
        if queue is not None:
            queue.put(job.id)

    def _work(self, queue: SimpleQueue[str | None]) -> None:
        while (job_id := queue.get()) is not None and not self._closing.is_set():
            try:
                self._run(self._jobs.get(job_id))
            except Exception as error:  # noqa: BLE001 - one job's fault must not end the thread that takes the next
                self._fail(job_id, error)
            self._jobs.committed(job_id)

    def _fail(self, job_id: str, error: Exception) -> None:
        """End a job with its error; where even that cannot be stored, the job resumes at the next start."""
        if self._closing.is_set():
            return
        if isinstance(error, TilewiseError):
            failure = _problem(error)
        else:
            failure = {"code": "internal", "error": "the service has a fault: see its log"}
            _LOG.error("job %s failed of a fault in the service", job_id, exc_info=error)
        try:
            self._finish(job_id, "failed", [], [], failure)
        except TilewiseError as second:
            _LOG.error("job %s cannot be ended: %s", job_id, second.message)

    def _run(self, job: JobRecord) -> None:
        if job.cancel_requested or self._jobs.is_cancelled(job.id):
            return self._finish(job.id, "cancelled", [], [])
        work = list(self._pieces(job))
        total = sum(expected(problem, unit, job.request) for unit, problem in work)
        if not self._database.write(lambda session: JobRows(session).start(job.id, total, datetime.now(UTC))):
            return None  # cancelled while it was queued
        self._jobs.committed(job.id)
        winners: list[BestRecord] = []
        failed: list[dict[str, Any]] = []
        for unit, problem in work:
            self._promote(winners[-1:])
            if not self._shape(job, unit, problem, winners, failed):
                break
        if self._closing.is_set():
            return None
        if self._jobs.is_cancelled(job.id):
            return self._finish(job.id, "cancelled", winners, failed)
        return self._finish(job.id, "succeeded" if winners else "failed", winners, failed)

    def _shape(
        self, job: JobRecord, unit: Unit, problem: Problem, winners: list[BestRecord], failed: list[dict[str, Any]]
    ) -> bool:
        """Tune one shape into `winners`, or its error into `failed`; False where the job is to stop."""
        attempts = Attempts(self._database, self._jobs, self._closing, job, unit, problem)
        started = perf_counter()
        try:
            best = self._done_before(job, unit, problem) or attempts.tune()
        except TilewiseError as error:
            failed.append({"problem": problem.key, "device": unit.device.id, **_problem(error)})
            return True
        finally:
            self.inside += attempts.inside
            self.total += perf_counter() - started
        if best is not None:
            winners.append(best)
        return best is not None

    def _pieces(self, job: JobRecord) -> Iterator[tuple[Unit, Problem]]:
        for device_id in job.request["devices"]:
            unit = self._fleet.unit(device_id)
            for problem in job.request["problems"]:
                yield unit, Problem(**problem)

    def _done_before(self, job: JobRecord, unit: Unit, problem: Problem) -> BestRecord | None:
        """The winner that this job promoted before an earlier process died."""
        record = self._best.record(unit.device.model, problem)
        return record if record is not None and record.trial.job_id == job.id else None

    def _promote(self, records: Sequence[BestRecord]) -> None:
        if not records:
            return
        self._database.write(lambda session: Bests(session).promote(*records))
        self._best.promoted(records)

    def _finish(
        self,
        job_id: str,
        state: str,
        winners: Sequence[BestRecord],
        failed: Sequence[dict[str, Any]],
        failure: dict[str, Any] | None = None,
    ) -> None:
        """End a job: its last winner and its end are one transaction."""
        promote = winners[-1:]
        result = {"best": [_result(winner) for winner in winners] + list(failed)} if winners or failed else None
        error = failure or (dict(failed[0]) if state == "failed" and failed else None)

        def end(session: Any) -> None:
            Bests(session).promote(*promote)
            JobRows(session).finish(job_id, state, result, error, datetime.now(UTC))

        self._database.write(end)
        self._best.promoted(promote)


def _check(problem: Problem, unit: Unit, kernels: Sequence[str] | None) -> None:
    """Refuse at once what no trial could measure."""
    names = [kernel.name for kernel in covering(problem, unit.device)]
    if kernels and not set(kernels) & set(names):
        raise Unsupported(f"none of {', '.join(kernels)} computes {problem.family} on {unit.device.id}")
    if problem.bytes > unit.device.memory_bytes:
        raise TooLarge(f"{problem.key} takes {problem.bytes} bytes", limit=unit.device.memory_bytes, size=problem.bytes)


def _as_json(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in Problem.__dataclass_fields__}


def _problem(error: TilewiseError) -> dict[str, Any]:
    return {"code": error.code, "error": error.message}


def _result(winner: BestRecord) -> dict[str, Any]:
    trial = winner.trial
    return {
        "problem": winner.problem.key,
        "device_model": winner.device_model,
        "kernel": trial.kernel,
        "config": dict(trial.config),
        "median_ms": trial.median_ms,
        "gflops": gflops(winner.problem, timing_of(trial)),
        "naive_ms": winner.naive.median_ms if winner.naive else None,
        "tiled_ms": winner.tiled.median_ms if winner.tiled else None,
        "vendor_ms": winner.vendor.median_ms if winner.vendor else None,
    }
