"""Accepts, resumes and schedules tune jobs: a thread a device; what was measured is saved before it is reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from app.devices.fleet import Fleet, Unit
from app.errors import Invalid, NotTuned, OverShare, QueueFull, TilewiseError
from app.observability.job_traces import JobTraces
from app.observability.request_context import RequestContext, current, entered
from app.observability.tracing import traced
from app.services.access.usage import DeviceSeconds
from app.services.best.misses import MissCounter
from app.services.jobs.service import ENDED, JobService, new_job
from app.services.principal import IDLE, Principal
from app.services.tuning.background import BackgroundTuning
from app.services.tuning.executor import AwaitDefaults, JobExecutor, RunningJob, TuneTarget, equal_units, is_exact
from app.services.tuning.forecast import expect_affordable
from app.services.tuning.job_queue import JobQueue, JobQueues
from app.services.tuning.job_sharing import JobSharing
from app.services.tuning.progress import GRACE, JobProgress
from app.services.tuning.request import KNOWN, ListedConfig, TuneSpec, kernels_to_search, max_trials, normalize
from app.services.tuning.shape_tuner import TuningContext
from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import BestRepository, JobRepository
from kernels.problem import Problem

_LOG = logging.getLogger(__name__)
RecordJob = Callable[[Any, str], None]
# Runs a job of another kind on a device until it ends, or what it is given says that it is to stop.
DeviceWork = Callable[[JobRecord, Unit, Callable[[], bool]], None]
_PATIENCE: Final = 4.0  # seconds that a launch of idle work has to end once another job waits: a new worker takes two
_LOOK: Final = 1.0  # seconds between looks for background work


def record_nothing(_session: Any, _job_id: str) -> None:
    """Record the job's id nowhere else."""


class TuningService:
    """Accepts tune jobs, and runs them in a thread a device. `submit` blocks for a transaction, never for a device.

    Of `total` seconds spent on jobs, `inside` were spent compiling, verifying and measuring; `idle_trials` counts the
    trials of background jobs. Without `background` devices wait for requests. `await_defaults` waits until the defaults
    of a device are verified, or what it is given returns true. `works` run jobs of other kinds in the same threads, so
    that none of them uses a device that a tune measures on.
    """

    def __init__(
        self,
        context: TuningContext,
        fleet: Fleet,
        misses: MissCounter,
        await_defaults: AwaitDefaults,
        *,
        queue: int,
        background: BackgroundTuning | None = None,
        works: Mapping[str, DeviceWork] | None = None,
    ) -> None:
        self._works = works or {}
        self._context, self._fleet, self._background = context, fleet, background
        self.sharing = JobSharing(context.database, context.claims)
        self._max_waiting = queue
        self._executor = JobExecutor(context, misses, await_defaults, fleet.units)
        self._closing = threading.Event()
        self._queues = JobQueues((unit.device.id for unit in fleet.units), context.jobs.is_followed)
        self._threads: list[threading.Thread] = []
        self._running: dict[str, RunningJob] = {}
        # Jobs that wait for a thread, or have one, with the request that each came of.
        self._known: dict[str, RequestContext | None] = {}
        self.traces = JobTraces()
        self.used = DeviceSeconds("tuning")
        self._submitting = threading.Lock()  # held while a job is created, upgraded or taken up
        self.idle_trials = 0

    @property
    def inside(self) -> float:
        """Seconds spent in workers."""
        return self._executor.inside

    @property
    def total(self) -> float:
        """Seconds spent on jobs."""
        return self._executor.total

    @property
    def kept(self) -> set[str]:
        """The jobs that wait for a thread, or have one, or of which anything else is kept in memory."""
        return {*self._known, *self._running, *self._queues.waiting}

    def start(self) -> None:
        """Queue the jobs that are this service's, oldest first, and start the threads."""
        self.sharing.start({"tune", *self._works}, self._accept)
        self._executor.start()
        for unit in self._fleet.units:
            args, name = (unit, self._queues.of(unit.device.id)), f"tune {unit.device.id}"
            thread = threading.Thread(target=self._serve, args=args, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Interrupt the trial under way and end the threads; unfinished jobs resume at the next start."""
        self._closing.set()
        for unit in self._fleet.units:
            if unit.trials is not unit.products:
                unit.trials.close()
        self._queues.close()
        self._executor.close()
        for thread in self._threads:
            thread.join(timeout=5)

    def submit(self, spec: TuneSpec, principal: Principal, record_job: RecordJob = record_nothing) -> JobRecord:
        """Join the job that does the same work with at least this budget, increase another's budget, or create a job.

        `record_job` writes the job's id elsewhere, in the transaction that creates it or in one of its own. Raises
        UnknownDevice, NoDevice, UnknownKernel, Unsupported, TooLarge, Invalid, BudgetTooSmall, QueueFull.
        """
        spec = normalize(spec, self._fleet)
        retune = spec.retune or spec.strategy == KNOWN
        if spec.strategy == KNOWN:
            spec = replace(spec, configs=self._known_configs(spec, principal))
        work, needs = self.sharing.work(principal, spec), self._needs(spec)
        with self._submitting:
            joined = self._active(work, spec) or (None if retune else self._finished(work, spec))
            if joined is not None:
                if record_job is not record_nothing:
                    self._database.write(lambda session: record_job(session, joined.id))
                return joined
            expect_affordable(spec.seconds, spec.problems, needs)
            self.expect_room()
            self._expect_within_quota(spec, principal)
            job = self._create(spec, work, principal, record_job)
            self.used.spend(principal, principal.quota.tune_seconds_per_hour, spec.seconds or 0.0)
            return job

    def expect_room(self) -> None:
        """Raise QueueFull if no more jobs may wait for devices."""
        waiting = self.sharing.waiting({"tune", *self._works}, len(self._queues))
        if waiting >= self._max_waiting:
            raise QueueFull(f"{waiting} jobs wait already", limit=self._max_waiting, size=waiting)

    def enqueue(self, job: JobRecord) -> None:
        """Queue a saved job of another kind for the thread of the device that its request names."""
        if not self.sharing.offer():
            self._accept(job)

    def affordable(self, spec: TuneSpec) -> int:
        """How many of the spec's problems, the first of them, its seconds suffice for; at least one.

        Raises as `submit`, which refuses the one if they do not.
        """
        spec = normalize(spec, self._fleet)
        spent, count = 0.0, 0
        for need in self._needs(spec):
            spent += need
            if spec.seconds is not None and spent > spec.seconds:
                break
            count += 1
        return max(1, count)

    def delete_best(self, unit: Unit, problem: Problem) -> None:
        """Delete the stored best of a problem on a device's model; raises NotTuned if there is none."""
        model = unit.device.model
        with self._submitting:  # no request joins the job that found it meanwhile
            if not self._database.write(lambda session: BestRepository(session).delete(model, problem)):
                raise NotTuned(
                    f"{problem} has not been tuned on {unit.device.id}", problem=asdict(problem), device=unit.device.id
                )
            self._context.best.deleted(model, problem)

    @property
    def _database(self) -> Database:
        return self._context.database

    @property
    def _jobs(self) -> JobService:
        return self._context.jobs

    def _expect_within_quota(self, spec: TuneSpec, principal: Principal) -> None:
        """Raise OverShare, DeviceTimeUsed or Invalid if a principal's quota has no room for another job."""
        quota = principal.quota
        if quota.tune_seconds_per_hour is not None and spec.seconds is None:
            raise Invalid("your key allows so many seconds of tuning an hour: give the budget in seconds")
        self.used.expect(principal, quota.tune_seconds_per_hour, spec.seconds or 0.0)
        if quota.jobs is None:
            return
        own = self._database.read(lambda session: JobRepository(session).unfinished_of(principal.name))
        if own >= quota.jobs:
            facts = {"limit": quota.jobs, "size": own, "retry_after": 1}
            raise OverShare(f"{own} jobs of yours have not ended, {quota.jobs} may be open", **facts)

    def _create(
        self, spec: TuneSpec, work: str, principal: Principal, record_job: RecordJob = record_nothing
    ) -> JobRecord:
        job = new_job("tune", spec.to_json(), work, principal=principal)
        add = self.sharing.adder(spec.devices, mine=spec.idle)
        self._database.write(lambda session: add(session, job, record_job))
        if spec.idle or not self.sharing.offer():
            self._enqueue(job.id, spec)
        self._jobs.notify(job.id)
        return job

    def _active(self, work: str, spec: TuneSpec) -> JobRecord | None:
        """The queued or running job of this work with at least the spec's budget, increased to it if need be."""
        for job in self._database.read(lambda session: JobRepository(session).unfinished(work)):
            known = self.sharing.is_shared or job.id in self._known
            if not known or self._is_ending(job):
                continue
            active = TuneSpec.from_json(job.request)
            if self._is_at_least(active, spec):
                return job
            if self._is_at_least(spec, active) and self._increase_budget(job, replace(active, budget=spec.budget)):
                return self._jobs.get(job.id)
        return None

    def _is_ending(self, job: JobRecord) -> bool:
        return job.cancel_requested or self._jobs.is_cancelled(job.id)

    def _increase_budget(self, job: JobRecord, spec: TuneSpec) -> bool:
        """Give a job a spec with a larger budget, at once if it runs; False if it has ended or is about to."""
        running = self._running.get(job.id)
        trials = None if running is None else self._max_trials(spec)
        if running is not None and not running.progress.increase_budget(spec.budget, trials or []):
            return False
        request, total = spec.to_json(), None if trials is None else sum(trials)
        if not self._database.write(
            lambda session: JobRepository(session).upgrade(job.id, request, job.fingerprint, total)
        ):
            return False
        if running is not None:
            self._put(job.id, running.device_ids)  # a device that had no shape left to tune may have one again
        self._jobs.notify(job.id)
        return True

    def _finished(self, work: str, spec: TuneSpec) -> JobRecord | None:
        """The finished job of this work that had at least the spec's budget, if its answers still hold."""
        best = self._context.best
        if not all(is_exact(best, problem, unit.device.id) for unit, problem in self._targets(spec)):
            return None
        job = self._database.read(lambda session: JobRepository(session).finished(work))
        return job if job is not None and self._is_at_least(TuneSpec.from_json(job.request), spec) else None

    def _known_configs(self, spec: TuneSpec, principal: Principal) -> tuple[ListedConfig, ...]:
        """The config that each problem is answered with now on each device, and the fastest imported ones of it."""
        found = dict[ListedConfig, None]()
        for unit, problem in self._targets(spec):
            answer = self._context.best.answer(problem, unit.device.id)
            theirs = self._context.imported.fastest(principal.name, unit.device, problem)
            for kernel, config in ((answer.kernel, answer.config), *theirs):
                found[ListedConfig(kernel, config, problem.key)] = None
        return tuple(found)

    def _is_at_least(self, one: TuneSpec, other: TuneSpec) -> bool:
        """Whether the budget of one spec is at least another's, both of the same work."""
        unit, problem = self._targets(other)[0]
        return one.budget.is_at_least(other.budget, len(kernels_to_search(problem, unit.device, other)))

    def _targets(self, spec: TuneSpec) -> list[TuneTarget]:
        """Each problem on each device."""
        return [(self._fleet.unit(device_id), problem) for device_id in spec.devices for problem in spec.problems]

    def _needs(self, spec: TuneSpec) -> list[float]:
        """The seconds that the least tune of each target is forecast to take."""
        needed, targets = self._context.forecasts.needed, self._targets(spec)
        each = None if spec.seconds is None else spec.seconds / len(targets)
        return [needed(unit, problem, kernels_to_search(problem, unit.device, spec), each) for unit, problem in targets]

    def _max_trials(self, spec: TuneSpec) -> list[int]:
        return [max_trials(problem, unit.device, spec) for unit, problem in self._targets(spec)]

    def _accept(self, job: JobRecord) -> None:
        """Queue a job that is saved, and this service's."""
        if job.kind == "tune":
            self._enqueue(job.id, self.sharing.spec_of(job))
        elif job.kind in self._works:
            self._put(job.id, self.sharing.devices_of(job, [job.request["device"]]))

    def _enqueue(self, job_id: str, spec: TuneSpec) -> None:
        """Queue a tune job for every device that may take part in it."""
        here = {unit.device.id: unit for unit in self._fleet.units}
        units = [here[device_id] for device_id in spec.devices if device_id in here]
        equal = [each for unit in units for each in equal_units(unit, self._fleet.units)] if spec.spread else units
        self._put(job_id, [unit.device.id for unit in equal], idle=spec.idle)

    def _put(self, job_id: str, device_ids: Sequence[str], *, idle: bool = False) -> None:
        self._known.setdefault(job_id, current())
        if not self._queues.put(job_id, device_ids, idle=idle):
            self._known.pop(job_id)

    def _serve(self, unit: Unit, queue: JobQueue) -> None:
        while not self._closing.is_set():
            job_id = queue.take(None if self._background is None else _LOOK)
            if job_id is not None:
                context = self.traces.recording(job_id, self._known.get(job_id))
                with entered(context), traced("tune job", {"tilewise.job": job_id}):
                    self._run(job_id, unit, queue)
                if job_id not in self._running:
                    self.traces.end(job_id)
            elif self._background is not None and not self._closing.is_set():
                self._create_background_job(self._background, unit)

    def _create_background_job(self, background: BackgroundTuning, unit: Unit) -> None:
        """Create the next background job of an idle device; a fault there must not end the device's thread."""
        try:
            spec = background.next(unit.device)
            if spec is not None:
                expect_affordable(spec.seconds, spec.problems, self._needs(spec))
                self._create(spec, self.sharing.work(IDLE, spec), IDLE)
        except TilewiseError as error:
            _LOG.warning("nothing is tuned while %s is idle: %s", unit.device.id, error.message)

    def _run(self, job_id: str, unit: Unit, queue: JobQueue) -> None:
        """Run one job, or as much of it as possible; a fault of it must not end the device's thread."""
        self._jobs.mark_active(job_id)
        running = None
        try:
            if (other := self._jobs.get(job_id)).kind in self._works:
                self._run_other(other, unit)
            elif (running := self._join(job_id, queue)) is not None:
                self._executor.take_part(running, unit)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's
            if not self._closing.is_set() and not self.sharing.goes_on(error):
                self._executor.fail(job_id, error)
        finally:
            self._leave(job_id, running, queue)
        self._jobs.notify(job_id)

    def _leave(self, job_id: str, running: RunningJob | None, queue: JobQueue) -> None:
        """Forget what is known of a job that is over; idle work that gave way to another job is queued again."""
        with self._submitting:
            if running is not None and running.is_over and self._forget(job_id) and running.spec.idle:
                self.idle_trials += running.progress.trials
                self._postpone(running.job, queue)
            running = self._running.get(job_id)
            if running is None or not running.is_worked_on:
                self._jobs.mark_inactive(job_id)
            if running is None and job_id not in self._queues:
                self._known.pop(job_id, None)
                self.sharing.done(job_id)

    def _forget(self, job_id: str) -> bool:
        """Forget a job that runs no more; False if that was done."""
        if self._running.pop(job_id, None) is None:
            return False
        self._jobs.set_times(job_id, None)
        self._queues.drop(job_id)
        return True

    def _run_other(self, job: JobRecord, unit: Unit) -> None:
        """Run a job of another kind, unless it has ended while it waited."""
        if job.state not in ENDED:
            self._works[job.kind](job, unit, lambda: self._is_stopped(job.id))

    def _join(self, job_id: str, queue: JobQueue) -> RunningJob | None:
        """Take part in a job, which begins with the first device; None if it is over."""
        with self._submitting:
            job = self._jobs.get(job_id)
            if job.state in ENDED:  # cancelled, be it while it waited for another of its devices
                self._forget(job_id)
                return None
            if job_id not in self._running:
                self._running[job_id] = self._begin(job, queue)
            running = self._running[job_id]
            return running if running.join() else None

    def _begin(self, job: JobRecord, queue: JobQueue) -> RunningJob:
        spec = self.sharing.spec_of(job)
        progress = JobProgress(
            spec.budget,
            self._max_trials(spec),
            partial(self._is_interrupted, job.id, spec, queue),
            needs=self._needs(spec),
            weights=(spec.weights or ()) * len(spec.devices),
            spent=job.spent_seconds or 0.0,
            grace=lambda: GRACE if self._is_stopped(job.id) else _PATIENCE,
        )
        self._jobs.set_times(job.id, progress.times)
        return RunningJob(job, spec, progress, self._targets(spec), self._fleet.units)

    def _is_interrupted(self, job_id: str, spec: TuneSpec, queue: JobQueue) -> bool:
        """Whether a job is to stop: at the service's end, by cancellation, or idle work because another job waits."""
        return self._is_stopped(job_id) or (spec.idle and len(queue) > 0)

    def _is_stopped(self, job_id: str) -> bool:
        """Whether a job is to stop: at the service's end, by cancellation, or since another service has claimed it."""
        return self._closing.is_set() or self._jobs.is_cancelled(job_id) or self.sharing.is_lost(job_id)

    def _postpone(self, job: JobRecord, queue: JobQueue) -> None:
        """Queue idle work again that gave way to another job, unless it has just ended."""
        if len(queue) and not self._closing.is_set() and self._jobs.get(job.id).state not in ENDED:
            self._database.write(lambda session: JobRepository(session).postpone(job.id))
            queue.put(job.id, idle=True)
