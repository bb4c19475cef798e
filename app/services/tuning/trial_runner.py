"""TrialRunner: runs a tune's trials in the device's trial worker, which a trial may kill."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from itertools import chain
from math import inf
from time import monotonic, perf_counter
from typing import Any, Final, TypeVar

from app.devices import worker_entry
from app.devices.fleet import Unit
from app.devices.lease import Priority
from app.devices.process import GLANCE, CallStopped, Until, never
from app.errors import (
    ChildDied,
    ChildLost,
    ChildTimedOut,
    CompileFailed,
    DeviceCordoned,
    DeviceError,
    LaunchFailed,
    TilewiseError,
)
from app.observability.tracing import current_span, traced
from app.services.tuning.progress import FINALS, PREPARING, SEARCH
from app.tuning.outcome import FORECAST, Conditions, Measured, Outcome, Rejected
from app.tuning.runner import Contender, InterleavedSamples, OutOfTime
from app.worker.measuring import trial
from kernels.launch import Build, Launch
from kernels.space import Config

T = TypeVar("T")

WRONG: Final = "wrong"
_LOG = logging.getLogger(__name__)
_MEASURING: Final = 0.25  # seconds of launches a trial may spend on a narrow interval
_SHARE: Final = 0.02  # of the seconds that are left, if that is less
_LEAST: Final = 0.01
_PATIENCE: Final = 1.0  # seconds of rounds between two looks at whether to stop
_SENSED: Final = 1.0  # seconds between two looks at the sensors
_DEADLINE: Final = 150.0  # seconds until the worker names its first phase: it may have to be started
_MEMORY: Final = re.compile(r"out.of.(host.)?memory|allocat", re.IGNORECASE)
_BY_STAGE: Final = {"compile": "compile", "verify": WRONG, "launch": "launch", "measure": "launch"}


class Interrupted(Exception):
    """The tune is to stop."""


def unobserved(_: Contender, __: Outcome, ___: float) -> None:
    """Do nothing with a trial's outcome and its seconds."""


class TrialRunner:
    """Runs the trials of one fixture in a device's trial worker; `inside` adds up the seconds spent there.

    `proving` are the seconds of the last proof; `conditions` what the sensors said after the last trial, None where
    they were not asked. Everything but `prepare` raises Interrupted once `interrupted` is true, and OutOfTime once
    `until` has come: the call is stopped then, if need be by killing the worker, and the config is not to blame.
    `enter` is told each phase that begins: preparing, search, finals; `observe` the seconds of a trial.
    """

    def __init__(
        self,
        unit: Unit,
        fixture: trial.FixtureKey,
        interrupted: Callable[[], bool],
        enter: Callable[[str], None],
        until: Until = never,
        observe: Callable[[Contender, Outcome, float], None] = unobserved,
    ) -> None:
        self.width = unit.width
        self.inside = self.proving = 0.0
        self._unit, self._fixture, self._interrupted = unit, fixture, interrupted
        self._enter, self._until, self._observe = enter, until, observe
        self._phase = ""
        self.conditions: Conditions | None = None
        self._sense_at = 0.0
        self._proved: dict[tuple[str, Config], Rejected | None] = {}  # by the build's digest
        self._kinds: dict[tuple[str, Config], str | None] = {}
        self._seconds: dict[tuple[str, Config], float] = {}
        self._round_seconds = 0.0  # seconds that a contender's round took, all told, in the last call
        self._building: dict[Build, Future[None]] = {}

    def prepare(self, launch: Launch) -> None:
        """Start to compile the launch ahead; returns at once. May be called from any thread."""
        is_new = launch.build not in self._building
        future = self._building[launch.build] = self._unit.ahead(launch.build)
        span = current_span()
        if is_new and span is not None and not future.done():
            told = {"tilewise.worker": "compilers", "tilewise.kernel": launch.kernel}
            building = span.child("compile ahead", None, told)
            future.add_done_callback(lambda _: building.end())

    def is_built(self, launch: Launch) -> bool:
        """Whether the launch's compilation has ended, be it in an error."""
        return launch.build not in self._building or self._building[launch.build].done()

    def await_build(self, launches: Sequence[Launch], most: float = inf) -> None:
        """Wait until the compilation of one of the launches has ended, or `most` seconds."""
        end = monotonic() + most
        with self._counted():
            building = [self._building[launch.build] for launch in launches if not self.is_built(launch)]
            while len(building) == len(launches) and not any(future.done() for future in building):
                if (left := end - monotonic()) <= 0:
                    return
                wait(building, timeout=min(GLANCE, left), return_when=FIRST_COMPLETED)
                if self._left <= 0:
                    raise CallStopped

    def abandon(self) -> None:
        """Give up the builds that will not be attempted."""
        given_up, self._building = self._building, {}
        self._unit.abandon(given_up)

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        """Compile, verify and time one candidate; whatever it does to the worker is Rejected."""

        def work() -> Outcome:
            if isinstance(contender, Launch):
                self._building.pop(contender.build, None)
                self._build(contender.build)
            limit = max(_LEAST, min(_MEASURING, _SHARE * self._left))
            outcome: Outcome = self._call(trial.attempt, contender, self._fixture, best, limit)
            return outcome

        self._prepare_fixture()
        started = perf_counter()
        try:
            outcome = self._guarded(contender, work)
        except OutOfTime:
            cut = Rejected(*_place(contender), FORECAST, "the budget was over")
            self._observe(contender, cut, perf_counter() - started)
            raise
        self._observe(contender, outcome, perf_counter() - started)
        if isinstance(outcome, Measured):
            self._seconds[_place(contender)] = outcome.timing.median_ms / 1e3
        self.conditions = self._sensed() if isinstance(outcome, Measured) else None
        return outcome

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """Verify a finalist on hostile operands, once; None: it holds."""

        def work() -> Rejected | None:
            rejected: Rejected | None = self._call(trial.stress_verify, launch, self._fixture)
            return rejected

        place = launch.build.digest, launch.config
        if place not in self._proved:
            started = perf_counter()
            try:
                self._proved[place] = self._guarded(launch, work)
            finally:
                self.proving = perf_counter() - started
        return self._proved[place]

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Time contenders that have been attempted, in turn; raises DeviceError if one takes the worker down.

        Rounds that take long are asked for a few at a time, so that an interruption is heeded between them.
        """
        launches = sum(self._seconds.get(_place(contender), 0.0) for contender in contenders)
        step = max(1, int(_PATIENCE / max(launches, self._round_seconds * len(contenders), _PATIENCE / rounds)))
        heats = [self._sample_interleaved(contenders, min(step, rounds - done)) for done in range(0, rounds, step)]
        return InterleavedSamples(
            seconds=tuple(
                tuple(chain.from_iterable(parts))
                for parts in zip(*(sample_interleaved.seconds for sample_interleaved in heats), strict=True)
            ),
            policy=heats[-1].policy,
            conditions=heats[-1].conditions,
            retaken=sum(sample_interleaved.retaken for sample_interleaved in heats),
        )

    def kind(self, rejected: Rejected) -> str | None:
        """What kind of fault a rejection of this runner's is; None where the config is not to blame for it."""
        place = rejected.kernel, rejected.config
        if place in self._kinds:
            return self._kinds[place]
        kind = _BY_STAGE.get(rejected.stage)
        return "memory" if kind == "launch" and _MEMORY.search(rejected.reason) else kind

    def finals(self) -> None:
        """Say that the search is over."""
        self._begin(FINALS)

    @property
    def _left(self) -> float:
        """Seconds until the runner is to stop."""
        return self._until().ask - monotonic()

    def _sensed(self) -> Conditions | None:
        """What the sensors say after a trial, at most once a second: of a GPU alone, since a CPU has none for all."""
        if self._unit.device.platform != "cuda" or monotonic() < self._sense_at:
            return None
        self._sense_at = monotonic() + _SENSED
        with suppress(TilewiseError, CallStopped):  # the trial is measured all the same
            return trial.conditions([self._call(worker_entry.sensors)])
        return None

    def _begin(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._enter(phase)

    def _prepare_fixture(self) -> None:
        """Make the operands, their reference and the reference kernel, before the first trial."""
        if self._phase:
            return
        self._begin(PREPARING)
        with self._counted(), suppress(DeviceError):  # the first trial meets it again, and says so
            self._call(trial.prepare, self._fixture)
        self._begin(SEARCH)

    def _build(self, build: Build) -> None:
        """Wait for a build that is compiled ahead, or compile it; an interrupted tune does not wait for it."""
        future = self._unit.ahead(build)
        while not future.done():
            wait([future], timeout=GLANCE)
            if self._left <= 0:
                raise CallStopped
        if future.cancelled():  # another tune that had asked for the same build has given it up
            self._unit.prepare(build)
        else:
            future.result()

    def _sample_interleaved(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        started = perf_counter()
        with self._counted():
            try:
                sample_interleaved: InterleavedSamples = self._twice(
                    lambda: self._call(trial.sample, contenders, self._fixture, rounds)
                )
            except DeviceError as error:
                if len(contenders) == 1:  # no other can be to blame
                    self._kinds[_place(contenders[0])] = kind_of(error)
                raise
        self._round_seconds = (perf_counter() - started) / rounds / len(contenders)
        return sample_interleaved

    def _guarded(self, contender: Contender, work: Callable[[], T]) -> T | Rejected:
        """The outcome of a candidate, whatever it does to its worker: it costs one trial."""
        kernel, config = _place(contender)
        _LOG.info("attempt %s %s %s %s", self._fixture.job_id, self._fixture.problem.key, kernel, config)
        self._kinds.pop((kernel, config), None)
        told = {"tilewise.kernel": kernel, "tilewise.config": str(config)}
        with traced("trial", told), self._counted():
            try:
                return self._twice(work)
            except (DeviceCordoned, ChildLost):
                raise  # no candidate of this device can be tried
            except DeviceError as error:
                self._kinds[kernel, config] = kind_of(error)
                return Rejected(kernel, config, _stage(error), error.message)

    def _twice(self, work: Callable[[], T]) -> T:
        """Repeat the work in a new worker if a signal from outside killed the first: that is no config's fault."""
        try:
            return work()
        except ChildDied as error:
            if not error.facts.get("outside") or self._interrupted():
                raise
            _LOG.warning("%s; it is tried once more", error.message)
            return work()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._interrupted():
            raise Interrupted
        if self._left <= 0:
            raise OutOfTime
        started = perf_counter()
        try:
            yield
        except CallStopped:
            raise (Interrupted if self._interrupted() else OutOfTime) from None
        finally:
            self.inside += perf_counter() - started

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._unit.trials.call(
            function, *arguments, priority=Priority.MEASUREMENT, deadline=_DEADLINE, until=self._until
        )


def _place(contender: Contender) -> tuple[str, Config]:
    """Kernel and config; the vendor's library has an empty one."""
    return (contender.kernel, contender.config) if isinstance(contender, Launch) else (trial.VENDOR, Config(()))


def _stage(error: DeviceError) -> str:
    """The stage at which a worker failed: compile, launch, verify or measure."""
    return "compile" if isinstance(error, CompileFailed) else str(error.facts.get("stage", "launch"))


def kind_of(error: DeviceError) -> str | None:
    """The kind of fault that an error shows; None for one that no config causes."""
    if _stage(error) == "start" or error.facts.get("outside"):
        return None  # the worker could not be set up, or was killed from outside
    for kind, failure in (("compile", CompileFailed), ("timeout", ChildTimedOut), ("died", ChildDied)):
        if isinstance(error, failure):
            return kind
    if isinstance(error, LaunchFailed):
        return "memory" if _MEMORY.search(error.message) else "launch"
    return None  # such as a fixture whose own reference is wrong
