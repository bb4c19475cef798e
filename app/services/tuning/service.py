"""Accepts, resumes and schedules tune jobs: a thread a device; what was measured is saved before it is reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from app.devices.fleet import Fleet, Unit
from app.errors import BudgetTooSmall, NotTuned, QueueFull, TilewiseError
from app.services.best.misses import MissCounter
from app.services.jobs.service import ENDED, JobService, new_job
from app.services.principal import IDLE, Principal
from app.services.tuning.background import BackgroundTuning
from app.services.tuning.executor import JobExecutor, Settled, is_exact
from app.services.tuning.forecast import least_budget
from app.services.tuning.job_queue import JobQueue
from app.services.tuning.progress import GRACE, JobBudget, JobProgress, budget_seconds
from app.services.tuning.request import KNOWN, TuneSpec, fingerprint, rebudgeted, resolve
from app.services.tuning.search_scope import configs_of, expected, searched
from app.services.tuning.shape_tuner import TuningContext
from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import BestRepository, JobRepository
from kernels.problem import Problem

__all__ = ["TuneSpec", "TuningService"]

_LOG = logging.getLogger(__name__)
Noted = Callable[[Any, str], None]
_PATIENCE: Final = 4.0  # seconds that a launch of idle work has to end where an order comes: a new child takes two
_LOOK: Final = 1.0  # seconds between two looks at whether an idle device has something to tune


def nothing(_session: Any, _job_id: str) -> None:
    """Be told of a job, and write nothing."""


class TuningService:
    """Takes tune orders and works them off. `submit` blocks for a transaction, never for a device.

    Of `total` seconds spent on jobs, `inside` were spent compiling, verifying and measuring; `idle_trials` counts the
    trials that nobody ordered. Without `idle` devices wait for orders. `settled` waits until nothing else, or what it
    is given says so, keeps a device from trying candidates.
    """

    def __init__(
        self,
        ledger: TuningContext,
        fleet: Fleet,
        misses: MissCounter,
        settled: Settled,
        *,
        queue: int,
        idle: BackgroundTuning | None = None,
    ) -> None:
        self._ledger, self._fleet, self._idle = ledger, fleet, idle
        self._limit = queue
        self._work = JobExecutor(ledger, misses, settled)
        self._closing = threading.Event()
        self._lines = {unit.device.id: JobQueue(ledger.jobs.followed) for unit in fleet.units}
        self._threads: list[threading.Thread] = []
        self._running: dict[str, JobProgress] = {}
        self._known: set[str] = set()  # jobs that wait for a thread, or have one
        self._submitting = threading.Lock()  # held while a job is created, upgraded or taken up
        self.idle_trials = 0

    @property
    def inside(self) -> float:
        """Seconds spent in children."""
        return self._work.inside

    @property
    def total(self) -> float:
        """Seconds spent on jobs."""
        return self._work.total

    def start(self) -> None:
        """Take up the jobs that an earlier process left unfinished, oldest first, then wait for more."""
        for job in self._database.read(lambda session: JobRepository(session).unfinished()):
            if job.kind == "tune":
                self._enqueue(job)
        for unit in self._fleet.units:
            line = self._lines[unit.device.id]
            thread = threading.Thread(target=self._serve, args=(unit, line), name=f"tune {unit.device.id}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End after the trial under way, which is broken off; unfinished jobs stay and resume at the next start."""
        self._closing.set()
        for unit in self._fleet.units:
            if unit.trials is not unit.products:
                unit.trials.close()
        for line in self._lines.values():
            line.close()
        for thread in self._threads:
            thread.join(timeout=5)

    def submit(self, order: TuneSpec, principal: Principal, noted: Noted = nothing) -> JobRecord:
        """Join the job that does the same work and as much of it, have one do more of it, or create one.

        `noted` writes the job's id elsewhere, in the transaction that creates it or in one of its own. Raises
        UnknownDevice, NoDevice, UnknownKernel, Unsupported, TooLarge, Invalid, BudgetTooSmall, QueueFull.
        """
        request = resolve(order, self._fleet)
        retune = order.retune or order.strategy == KNOWN
        if order.strategy == KNOWN:
            request["configs"] = self._known_configs(request)
        work, needs = fingerprint(principal, request), self._needs(request)
        with self._submitting:
            joined = self._active(work, request) or (None if retune else self._finished(work, request))
            if joined is not None:
                if noted is not nothing:
                    self._database.write(lambda session: noted(session, joined.id))
                return joined
            self._expect_affordable(request, needs)
            waiting = sum(map(len, self._lines.values()))
            if waiting >= self._limit:
                raise QueueFull(f"{waiting} jobs wait already", limit=self._limit, size=waiting)
            return self._create(request, work, noted)

    def delete_best(self, unit: Unit, problem: Problem) -> None:
        """Take back what is stored as best for a problem on a device's model; raises NotTuned where nothing is."""
        model = unit.device.model
        with self._submitting:  # nobody is told meanwhile that it has been tuned already
            if not self._database.write(lambda session: BestRepository(session).delete(model, problem)):
                raise NotTuned(
                    f"{problem} has not been tuned on {unit.device.id}", problem=asdict(problem), device=unit.device.id
                )
            self._ledger.best.deleted(model, problem)

    @property
    def _database(self) -> Database:
        return self._ledger.database

    @property
    def _jobs(self) -> JobService:
        return self._ledger.jobs

    def _create(self, request: dict[str, Any], work: str, noted: Noted = nothing) -> JobRecord:
        job = new_job("tune", request, work)

        def add(session: Any) -> None:
            JobRepository(session).add(job)
            noted(session, job.id)

        self._database.write(add)
        self._enqueue(job)
        return job

    def _active(self, work: str, request: Mapping[str, Any]) -> JobRecord | None:
        """The queued or running job of this work that covers the request's budget, upgraded to it where need be."""
        wanted, covers = JobBudget.of(request), self._covers(request)
        for job in self._database.read(lambda session: JobRepository(session).unfinished()):
            if job.fingerprint != work or job.id not in self._known or self._is_ending(job):
                continue
            has = JobBudget.of(job.request)
            if covers(has, wanted):
                return job
            if covers(wanted, has) and self._upgrade(job, rebudgeted(job.request, request)):
                return self._jobs.get(job.id)
        return None

    def _is_ending(self, job: JobRecord) -> bool:
        return job.cancel_requested or self._jobs.is_cancelled(job.id)

    def _upgrade(self, job: JobRecord, request: dict[str, Any]) -> bool:
        """Give a job a larger budget, at once where it runs; False where it has ended or is about to."""
        running = self._running.get(job.id)
        totals = None if running is None else self._expected(request)
        if running is not None and not running.raise_to(JobBudget.of(request), totals or []):
            return False
        total = None if totals is None else sum(totals)
        if not self._database.write(
            lambda session: JobRepository(session).upgrade(job.id, request, job.fingerprint, total)
        ):
            return False
        self._jobs.committed(job.id)
        return True

    def _finished(self, work: str, request: Mapping[str, Any]) -> JobRecord | None:
        """The finished job of this work that spent the request's budget, where its answers still hold."""
        best = self._ledger.best
        if not all(is_exact(best, problem, unit.device.id) for unit, problem in self._pieces(request)):
            return None
        job = self._database.read(lambda session: JobRepository(session).finished(work))
        covers = self._covers(request)
        return job if job is not None and covers(JobBudget.of(job.request), JobBudget.of(request)) else None

    def _known_configs(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The config that each problem is answered with now, on each device."""
        found = []
        for unit, problem in self._pieces(request):
            answer = self._ledger.best.answer(problem, unit.device.id)
            found += [{"problem": problem.key, **one} for one in configs_of([(answer.kernel, answer.config)])]
        return found

    def _covers(self, request: Mapping[str, Any]) -> Callable[[JobBudget, JobBudget], bool]:
        """Whether one allowance covers another, by the kernels that the work searches."""
        unit, problem = next(self._pieces(request))
        kernels = len(searched(problem, unit.device, request))
        return lambda one, other: one.covers(other, kernels)

    def _pieces(self, request: Mapping[str, Any]) -> Iterator[tuple[Unit, Problem]]:
        for device_id in request["devices"]:
            unit = self._fleet.unit(device_id)
            for problem in request["problems"]:
                yield unit, Problem(**problem)

    def _needs(self, request: Mapping[str, Any]) -> list[float]:
        """The seconds that the least tune of each piece is forecast to take."""
        needed, seconds = self._ledger.forecasts.needed, budget_seconds(request)
        pieces = list(self._pieces(request))
        each = None if seconds is None else seconds / len(pieces)
        return [needed(unit, problem, searched(problem, unit.device, request), each) for unit, problem in pieces]

    def _expect_affordable(self, request: Mapping[str, Any], needs: Sequence[float]) -> None:
        """Raise BudgetTooSmall where the seconds do not suffice for one trial of every problem."""
        seconds, needed = budget_seconds(request), sum(needs)
        if seconds is None or needed <= seconds:
            return
        what = str(Problem(**request["problems"][0])) if len(needs) == 1 else f"each of {len(needs)} problems"
        least = least_budget(needed)
        raise BudgetTooSmall(
            f"one trial of {what} is forecast to take {needed:.3g} s, over the budget of {seconds:g} s: "
            f"give it {least} seconds at least (--seconds {least})",
            needed_seconds=least,
        )

    def _expected(self, request: Mapping[str, Any]) -> list[int]:
        return [expected(problem, unit.device, request) for unit, problem in self._pieces(request)]

    def _enqueue(self, job: JobRecord) -> None:
        """Queue a job with its first device's thread; a device that is gone leaves it to the first thread there is."""
        first = job.request["devices"][0]
        line = self._lines.get(first) or next(iter(self._lines.values()), None)
        if line is not None:
            self._known.add(job.id)
            line.put(job.id, idle=bool(job.request.get("idle")))

    def _serve(self, unit: Unit, line: JobQueue) -> None:
        while not self._closing.is_set():
            job_id = line.take(None if self._idle is None else _LOOK)
            if job_id is not None:
                self._do(job_id, line)
            elif self._idle is not None and not self._closing.is_set():
                self._look(self._idle, unit)

    def _look(self, idle: BackgroundTuning, unit: Unit) -> None:
        """Give an idle device something to do; a fault there must not end the thread that takes orders."""
        try:
            request = idle.next(unit.device)
            if request is not None:
                self._expect_affordable(request, self._needs(request))
                self._create(request, fingerprint(IDLE, request))
        except TilewiseError as error:
            _LOG.warning("nothing is tuned while %s is idle: %s", unit.device.id, error.message)

    def _do(self, job_id: str, line: JobQueue) -> None:
        """Work one job off, or as far as it gets; one job's fault must not end the thread that takes the next."""
        self._jobs.begun(job_id)
        try:
            job, running = self._taken(job_id, line)
            if job.state in ENDED:
                return
            self._work.run(job, running, list(self._pieces(job.request)))
            if job.request.get("idle"):
                self.idle_trials += running.trials
                if self._yields(job, line):
                    self._postpone(job, line)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's
            if not self._closing.is_set():
                self._work.fail(job_id, error)
        finally:
            if job_id not in line:
                self._known.discard(job_id)
            self._running.pop(job_id, None)
            self._jobs.timed(job_id, None)
            self._jobs.ended(job_id)
        self._jobs.committed(job_id)

    def _taken(self, job_id: str, line: JobQueue) -> tuple[JobRecord, JobProgress]:
        with self._submitting:
            job = self._jobs.get(job_id)
            stopped = partial(self._stopped, job, line)
            running = JobProgress(
                JobBudget.of(job.request),
                self._expected(job.request),
                stopped,
                needs=self._needs(job.request),
                spent=job.spent_seconds or 0.0,
                grace=lambda: GRACE if self._closing.is_set() or self._jobs.is_cancelled(job_id) else _PATIENCE,
            )
            self._running[job_id] = running
        self._jobs.timed(job_id, running.times)
        return job, running

    def _stopped(self, job: JobRecord, line: JobQueue) -> bool:
        return self._closing.is_set() or self._jobs.is_cancelled(job.id) or self._yields(job, line)

    def _yields(self, job: JobRecord, line: JobQueue) -> bool:
        return bool(job.request.get("idle")) and len(line) > 0

    def _postpone(self, job: JobRecord, line: JobQueue) -> None:
        """Idle work waits again, unless it has just ended."""
        if not self._closing.is_set() and self._jobs.get(job.id).state not in ENDED:
            self._database.write(lambda session: JobRepository(session).postpone(job.id))
            line.put(job.id, idle=True)
