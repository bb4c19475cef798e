"""Verifies each device's default kernels at start; a device is ready once its lowest kernel is verified.

The trial worker compiles and verifies a default first, so that one that hangs or kills its process costs no product
anything; then the serving worker does, from the cache. What fails is quarantined, the kernel below serves in its place,
and it is tried again later, less and less often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from app.devices.fleet import Fleet, Unit
from app.devices.lease import Priority
from app.devices.process import DeviceWorker
from app.errors import ChildDied, Closing, DeviceError, TilewiseError, Unsupported
from app.services.best.kernel_order import covering, default_launch
from app.services.best.lookup import BestConfigs
from app.services.best.quarantine import Quarantine, QuarantinedConfig
from app.services.matmul.device_queue import BuildDeadlines
from app.services.matmul.kernel_choice import ServingFailures
from app.services.tuning.forecast import TrialForecasts
from app.worker.serving import launch_class
from kernels.launch import Launch
from kernels.problem import Problem

PROBLEM: Final = Problem(256, 256, 256)
_LOG: Final = logging.getLogger(__name__)
_LEAST: Final = 10.0  # seconds at least that building or verifying a default may take
_STARTING: Final = 15.0  # seconds a worker may take before it names its first phase
_SETTLING: Final = 30.0  # seconds that a job waits at most for a device whose defaults are being verified
_GLANCE: Final = 0.1  # seconds between two looks at whether it still waits
_AGAIN: Final = (1.0, 30.0)  # seconds until a device that is not ready is tried again: the first time, and at most
_RETRY: Final = (30.0, 600.0)  # the same of a config that is suspected
_GENEROUS: Final = 4.0  # times the deadline, where a config is tried again


@dataclass(frozen=True, slots=True)
class DeviceReadiness:
    """How far the verification of one device's defaults is.

    `reason` says why its lowest kernel does not serve yet; None: the device is ready. `pending` defaults are neither
    verified nor quarantined yet.
    """

    device: str
    reason: str | None
    verified: int = 0
    pending: int = 0
    total: int = 0


class DefaultVerification:
    """Verifies defaults from `start` to `stop`, a thread for each device: one that fails does not hold up another."""

    def __init__(
        self,
        fleet: Fleet,
        quarantine: Quarantine,
        best: BestConfigs,
        failures: ServingFailures,
        deadlines: BuildDeadlines,
        forecasts: TrialForecasts,
    ) -> None:
        self._fleet, self._quarantine, self._best = fleet, quarantine, best
        self._failures, self._deadlines, self._forecasts = failures, deadlines, forecasts
        self._settled: dict[str, threading.Event] = {}
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._states: dict[str, DeviceReadiness] = {}

    def start(self) -> None:
        """Withhold every default above the lowest, and begin to verify them all; returns at once."""
        for unit in self._fleet.units:
            launches = defaults(unit)
            for launch in launches[1:]:
                self._quarantine.withhold(unit.device, launch.kernel)
            self._quarantine.unready |= {unit.device.id}
            reason = f"the float32 defaults of {unit.device.id} are being verified"
            count = len(launches)
            self._states[unit.device.id] = DeviceReadiness(unit.device.id, reason, pending=count, total=count)
            self._settled[unit.device.id] = threading.Event()
        for unit in self._fleet.units:
            name = f"verify defaults of {unit.device.id}"
            self._threads.append(threading.Thread(target=self._run, args=(unit,), name=name, daemon=True))
            self._threads[-1].start()

    def await_settled(self, unit: Unit, stopped: Callable[[], bool]) -> None:
        """Wait until each default of a device is verified or has failed, or `stopped`; no longer than half a minute."""
        settled, until = self._settled.get(unit.device.id), monotonic() + _SETTLING
        while settled is not None and monotonic() < until and not stopped() and not settled.wait(_GLANCE):
            pass

    def stop(self) -> None:
        """Have the threads end; they may wait for a worker, until that is closed."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            thread.join(_STARTING)

    def states(self) -> list[DeviceReadiness]:
        """How far each device is."""
        with self._changing:
            return list(self._states.values())

    def degraded(self) -> list[str]:
        """What the service lacks: devices that serve nothing, and what is quarantined of what they would serve."""
        found = [state.reason for state in self.states() if state.reason is not None and not state.pending]
        for unit in self._fleet.units:
            found += [_sentence(unit, entry) for entry in self._quarantine.entries(unit.device) if entry.serving]
        return list(dict.fromkeys(found))

    def verify(self, unit: Unit) -> None:
        """Verify a device's defaults once, in turn; raises DeviceError where the lowest fails."""
        lowest, *others = defaults(unit)
        self._lowest(unit, lowest)
        rehearsed = self._rehearsed(unit, others)
        for launch, rehearsal in zip(others, rehearsed, strict=True):
            self._settle(unit, launch, rehearsal)

    def _run(self, unit: Unit) -> None:
        try:
            self._bring_up(unit)
            self._keep_trying(unit)
        except TilewiseError as error:
            if not self._stopping.is_set() and not isinstance(error, Closing):
                _LOG.exception("the defaults of %s are verified no further", unit.device.id)

    def _bring_up(self, unit: Unit) -> None:
        """Verify the lowest default, again and again until it holds, and then the others."""
        others = defaults(unit)[1:]
        rehearsed = self._rehearsed(unit, others)
        wait, longest = _AGAIN
        while (failure := self._failure_of_lowest(unit)) is not None:
            reason = f"{unit.device.id} serves nothing: {failure.message}"
            self._tell(unit, reason=reason, pending=0)
            _LOG.warning("%s; it is tried again in %g s", reason, wait)
            if self._stopping.wait(wait):
                return
            wait, rehearsed = min(longest, 2 * wait), []
        self._quarantine.unready -= {unit.device.id}
        self._tell(unit, reason=None, verified=1, pending=len(others))
        for launch, rehearsal in zip(others, rehearsed or self._rehearsed(unit, others), strict=True):
            self._settle(unit, launch, rehearsal)
            self._count(unit)
        self._settled[unit.device.id].set()

    def _failure_of_lowest(self, unit: Unit) -> DeviceError | None:
        try:
            self._lowest(unit, defaults(unit)[0])
        except DeviceError as error:
            return error
        return None

    def _lowest(self, unit: Unit, launch: Launch) -> None:
        held = self._quarantine.holds(unit.device, launch.kernel, launch.config, launch.problem)
        if held is not None:
            raise DeviceError(f"{launch.kernel} {launch.config} is quarantined: {held}")
        try:
            self._verify(unit, unit.products, launch, 1.0)
        except DeviceError as error:
            self._failures.record(unit, launch, error)
            raise

    def _rehearsed(self, unit: Unit, launches: Sequence[Launch]) -> list[Future[None]]:
        """Each default being built and verified by the trial worker, in turn; at once done if there is none."""
        wanted = [launch for launch in launches if not self._is_held(unit, launch)]
        if unit.trials is unit.products:
            wanted = []
        with_threads = ThreadPoolExecutor(1, thread_name_prefix=f"rehearse defaults of {unit.device.id}")
        try:
            return [
                with_threads.submit(self._verify, unit, unit.trials, launch, 1.0) if launch in wanted else _done()
                for launch in launches
            ]
        finally:
            with_threads.shutdown(wait=False)

    def _settle(self, unit: Unit, launch: Launch, rehearsal: Future[None]) -> None:
        """Serve a default, or quarantine it."""
        if self._is_held(unit, launch):
            if self._quarantine.holds(unit.device, launch.kernel, launch.config) is not None:
                self._quarantine.allow(unit.device, launch.kernel)  # it answered wrong: its other configs may be right
            return
        try:
            _outcome_of(rehearsal)
            self._verify(unit, unit.products, launch, 1.0)
        except DeviceError as error:
            kind = self._failures.record(unit, launch, error)
            _LOG.warning("%s serves no %s: %s", unit.device.id, launch.kernel, error.message)
            if kind != "wrong":
                return  # its other configs are not trusted either, until this one was verified
        self._quarantine.allow(unit.device, launch.kernel)
        self._best.changed()

    def _verify(self, unit: Unit, child: DeviceWorker, launch: Launch, generous: float) -> None:
        """Build and verify a launch's class in a worker; once more if a signal from outside killed that."""
        allowed = generous * self._deadlines.seconds(unit, _LEAST)
        started = monotonic()
        for last in (False, True):
            try:
                unit.prepare(launch.build, allowed)
                child.call(launch_class.verify_class, launch, allowed, priority=Priority.CHECK, deadline=_STARTING)
            except ChildDied as error:
                if last or not error.facts.get("outside"):
                    raise
            else:
                break
        took = monotonic() - started
        self._deadlines.learn(unit, took)
        if child is unit.trials:
            self._forecasts.built(unit.device, launch, took)

    def _is_held(self, unit: Unit, launch: Launch) -> bool:
        return self._quarantine.holds(unit.device, launch.kernel, launch.config, launch.problem) is not None

    def _keep_trying(self, unit: Unit) -> None:
        """Try again what is suspected, the longer apart the oftener it failed."""
        due: dict[tuple[str, str, str], tuple[float, float]] = {}  # when, and how long after the last time
        while not self._stopping.wait(1.0):
            for entry in self._quarantine.entries(unit.device):
                if entry.launch is None:
                    continue
                place = entry.kernel, str(entry.config), entry.scope
                when, after = due.setdefault(place, (monotonic() + _RETRY[0], _RETRY[0]))
                if monotonic() < when or unit.trials.waiting:
                    continue
                self._try_again(unit, entry, entry.launch)
                after = min(_RETRY[1], 2 * after)
                due[place] = monotonic() + after, after

    def _try_again(self, unit: Unit, entry: QuarantinedConfig, launch: Launch) -> None:
        try:
            self._verify(unit, unit.trials, launch, _GENEROUS)
            self._verify(unit, unit.products, launch, 1.0)
        except DeviceError as error:
            self._failures.strike(unit, launch, error)
            return
        self._quarantine.release(unit.device, entry)
        if launch in defaults(unit):
            self._quarantine.allow(unit.device, launch.kernel)
            self._count(unit)
        self._best.changed()

    def _count(self, unit: Unit) -> None:
        """Tell how many defaults are verified now."""
        lowest, *others = defaults(unit)
        del lowest
        state = self._states[unit.device.id]
        allowed = [one for one in others if not self._quarantine.withholds(unit.device, one.kernel)]
        verified = 1 + sum(not self._is_held(unit, one) for one in allowed)
        self._tell(unit, verified=verified, pending=max(0, state.pending - 1))

    def _tell(self, unit: Unit, **changed: str | int | None) -> None:
        with self._changing:
            self._states[unit.device.id] = replace(self._states[unit.device.id], **changed)  # type: ignore[arg-type]


def defaults(unit: Unit) -> list[Launch]:
    """The float32 defaults that a device serves, the lowest first: of large squares whose rows are whole 16 bytes."""
    found = []
    for kernel in covering(PROBLEM, unit.device):
        try:
            found.append(default_launch(kernel, PROBLEM, unit.device))
        except Unsupported:  # a device that allows no config of a kernel is not served by it
            continue
    return found


def _outcome_of(rehearsal: Future[None]) -> None:
    """Raise what a rehearsal failed of, unless the trial worker could not be started: then nothing is known."""
    try:
        rehearsal.result()
    except DeviceError as error:
        if error.facts.get("stage") != "start":
            raise


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _sentence(unit: Unit, entry: QuarantinedConfig) -> str:
    what = f"{entry.dtype} ({entry.precision})" if entry.dtype else "every problem"
    return f"{unit.device.id}: {entry.kernel} {entry.config} is quarantined for {what}: {entry.reason}"
