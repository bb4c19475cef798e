"""ProfileRunner: profiles naive, tiled, the winner and the vendor's library in one job, by the best source there is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

from app.devices.backend import LaunchResources
from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.devices.process import CallStopped
from app.devices.process.worker_main import NEVER, CallLimit, Until
from app.errors import DeviceError, TilewiseError
from app.profiling.figures import DRIVER, MODEL, ROLES, TIMER, KernelProfile, SourceFigures, assembled
from app.profiling.findings import findings
from app.profiling.model import predicted, rates
from app.services.best.lookup import BestConfigs
from app.services.jobs.service import JobService
from app.services.profiles.counters import CounterReading, read_counters
from app.services.tuning.executor import AwaitDefaults
from app.store.database import Database
from app.store.records import JobRecord, ProfileRecord
from app.store.repository import JobRepository, ProfileRepository
from app.tuning.outcome import Measured, Rejected
from app.tuning.runner import Contender
from app.worker.measuring import profile, trial
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

_LOG = logging.getLogger(__name__)
_KEPT: Final = 1000  # profiles, the newest
_MEASURING: Final = 0.25  # seconds of launches that are timed, as of one trial
_DEADLINE: Final = 150.0  # seconds until the worker names its first phase: it may have to be started
_GRACE: Final = 1.0  # seconds that a call has to end in once the profile is to stop


class ProfileStopped(Exception):
    """The profile is to stop."""


@dataclass(frozen=True, slots=True)
class ProfiledContender:
    """A contender in its role; `refusal` is why there is none."""

    role: str
    kernel: str
    config: Config
    contender: Contender | None
    refusal: str | None = None


class ProfileRunner:
    """Runs a profile's job in the device's thread, as a tune's: one trial after another, and then their counters."""

    def __init__(
        self, database: Database, jobs: JobService, best: BestConfigs, cache: Path, await_defaults: AwaitDefaults
    ) -> None:
        self._database, self._jobs, self._best, self._cache = database, jobs, best, cache
        self._await_defaults = await_defaults

    def run(self, job: JobRecord, unit: Unit, stopped: Callable[[], bool]) -> None:
        """Profile, save and end the job; one that is interrupted by the service's end stays as it is."""
        problem = Problem(**job.request["problem"])
        try:
            self._await_defaults(unit, stopped)
            found = list(self._profiled(job, unit, problem, stopped))
        except (ProfileStopped, CallStopped):
            if self._jobs.is_cancelled(job.id):
                self._jobs.end(job.id, "cancelled", None, None)
            return
        except TilewiseError as error:
            if not stopped():
                self._jobs.end(job.id, "failed", None, {"code": error.code, "error": error.message})
            return
        content = {"kernels": [one.to_json() for one in found], "findings": findings(found)}
        about = unit.device.id, unit.device.model, unit.device.environment, problem
        record = ProfileRecord(job.id, *about, content, datetime.now(UTC))
        self._database.write(lambda session: ProfileRepository(session).save(record, _KEPT))
        is_profiled = any(one.refusal is None for one in found)
        refusals = "; ".join(sorted({one.refusal for one in found if one.refusal}))
        error_told = None if is_profiled else {"code": DeviceError.code, "error": f"nothing was profiled: {refusals}"}
        self._jobs.end(job.id, "succeeded" if is_profiled else "failed", {"profile": job.id}, error_told)

    def _profiled(
        self, job: JobRecord, unit: Unit, problem: Problem, stopped: Callable[[], bool]
    ) -> Iterator[KernelProfile]:
        chosen = contenders(self._best, unit, problem)
        if not self._database.write(
            lambda session: JobRepository(session).start(job.id, len(chosen), datetime.now(UTC))
        ):
            raise ProfileStopped
        self._jobs.notify(job.id)
        key = trial.FixtureKey(job.id, problem, int(job.id[:8], 16))
        for one in chosen:
            if stopped():
                raise ProfileStopped
            yield _KernelProfiler(unit, key, self._cache, stopped).profile(one)
            self._database.write(lambda session: JobRepository(session).advance(job.id, None))
            self._jobs.notify(job.id)


class _KernelProfiler:
    """Profiles one contender after another on a unit."""

    def __init__(self, unit: Unit, key: trial.FixtureKey, cache: Path, stopped: Callable[[], bool]) -> None:
        self._unit, self._key, self._cache, self._stopped = unit, key, cache, stopped
        self._until = stopping(stopped)

    def profile(self, one: ProfiledContender) -> KernelProfile:
        """Its figures; a contender that fails is told with its reason."""
        names = one.role, one.kernel, dict(one.config)
        if one.contender is None:
            return KernelProfile(*names, refusal=one.refusal)
        try:
            outcome = self._attempted(one.contender)
            if isinstance(outcome, Rejected):
                return KernelProfile(*names, refusal=outcome.reason)
            return self._measured(one, one.contender, outcome)
        except DeviceError as error:
            _LOG.warning("%s of %s was not profiled: %s", one.kernel, self._key.problem.key, error.message)
            return KernelProfile(*names, refusal=error.message)

    def _attempted(self, contender: Contender) -> Measured | Rejected:
        """Compile, verify and time it, as a tune does."""
        if isinstance(contender, Launch):
            self._unit.prepare(contender.build)
        outcome: Measured | Rejected = self._call(trial.attempt, contender, self._key, None, _MEASURING)
        return outcome

    def _measured(self, one: ProfiledContender, contender: Contender, outcome: Measured) -> KernelProfile:
        problem, device, time = self._key.problem, self._unit.device, outcome.timing.median_ms
        of_driver, modelled_figures, path = dict[str, float](), dict[str, float](), "fma"
        if isinstance(contender, Launch):
            kernel = CATALOGUE[one.kernel]
            path = kernel.instructions
            told: LaunchResources | None = self._call(profile.resources, contender)
            of_driver = driver_figures(told, contender, self._unit)
            registers = int(of_driver.get("registers", 0))
            modelled_figures = predicted(kernel, one.config, problem, device, registers)
        counted = self._counted(one, contender, time / 1000)
        modelled = {name: value for name, value in modelled_figures.items() if name != "time_ms"}
        sources = [
            SourceFigures(TIMER, {"time_ms": time}),
            SourceFigures(counted.source, counted.values),
            SourceFigures(DRIVER, of_driver),
            SourceFigures(MODEL, {**modelled, **(rates(path, problem, device, time))}),
        ]
        figures = assembled(device.platform, one.role, sources, modelled_figures, counted.reason)
        return KernelProfile(one.role, one.kernel, dict(one.config), figures)

    def _counted(self, one: ProfiledContender, contender: Contender, launch_seconds: float) -> CounterReading:
        def repeat(seconds: float) -> tuple[int, float]:
            count, spent = self._call(profile.repeat, contender, self._key, seconds)
            return int(count), float(spent)

        what = self._key.problem, one.kernel, one.config
        return read_counters(self._unit, self._cache, what, launch_seconds, repeat, self._stopped)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._unit.trials.call(
            function, *arguments, priority=Priority.MEASUREMENT, deadline=_DEADLINE, until=self._until
        )


def contenders(best: BestConfigs, unit: Unit, problem: Problem) -> list[ProfiledContender]:
    """Naive, tiled, what would serve the problem now, and the vendor's library, each with its config or its refusal."""
    device, answer = unit.device, best.answer(problem, unit.device.id)
    found = []
    for role in ROLES[:2]:
        kernel = CATALOGUE[role]
        refusal = kernel.refusal(problem, device)
        if refusal is not None:
            found.append(ProfiledContender(role, role, Config(()), None, refusal))
            continue
        beside = (answer.baselines or {}).get(role) if answer.match == "exact" else None
        config = beside.config if beside and beside.config else kernel.default(problem, device)
        found.append(ProfiledContender(role, role, config, kernel.launch(config, problem, device)))
    found.append(ProfiledContender("winner", answer.kernel, answer.config, answer.launch))
    vendor = unit.vendor
    library = None if vendor.name is None else problem
    found.append(ProfiledContender("vendor", trial.VENDOR, Config(()), library, vendor.reason))
    return found


def driver_figures(told: LaunchResources | None, launch: Launch, unit: Unit) -> dict[str, float]:
    """What the driver says of a launch, as figures."""
    if told is None:
        return {}
    names: Mapping[str, int | None] = {
        "registers": told.registers,
        "local_bytes": told.local_bytes,
        "shared_bytes": told.shared_bytes,
    }
    found = {name: float(value) for name, value in names.items() if value is not None}
    threads = unit.device.limits.threads_per_sm
    if told.blocks_per_sm is not None and threads:
        found["occupancy_percent"] = 100 * told.blocks_per_sm * launch.threads / threads
    return found


def stopping(stopped: Callable[[], bool]) -> Until:
    """The limit of a call that is to end once `stopped`."""
    since: list[float] = []

    def until() -> CallLimit:
        if not since and stopped():
            since.append(monotonic())
        return CallLimit(since[0], since[0] + _GRACE) if since else NEVER

    return until
