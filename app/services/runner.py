"""ChildRunner: a tune's candidates tried in a device's trial child, which they may take down at will."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import perf_counter
from typing import Any, Final, TypeVar

from app.devices.fleet import Unit
from app.devices.scheduler import Priority
from app.errors import ChildDied, ChildTimedOut, CompileFailed, DeviceError, LaunchFailed
from app.tuning import trial
from app.tuning.outcome import Measured, Outcome, Rejected
from app.tuning.runner import Contender, Heat
from kernels.kernel import Build, Launch
from kernels.space import Config

T = TypeVar("T")

WRONG: Final = "wrong"
_LOG = logging.getLogger(__name__)
_MEASURING: Final = 0.25  # seconds of launches a trial may spend on a narrow interval
_PATIENCE: Final = 1.0  # seconds of rounds between two looks at whether to stop
_DEADLINE: Final = 150.0  # seconds until the child names its first phase: it may have to be started
_MEMORY: Final = re.compile(r"out.of.(host.)?memory|allocat", re.IGNORECASE)
_BY_STAGE: Final = {"compile": "compile", "verify": WRONG, "launch": "launch", "measure": "launch"}


class Interrupted(Exception):
    """The tune is to stop: nobody waits for what would be tried next."""


class ChildRunner:
    """Tries one bench's candidates in a unit's trial child; `inside` adds up the seconds spent there.

    Everything but `prepare` raises Interrupted, before it begins, once `interrupted` says so. `finals` is called once,
    before the first finalist is proved or sampled.
    """

    def __init__(
        self, unit: Unit, bench: trial.Bench, interrupted: Callable[[], bool], finals: Callable[[], None]
    ) -> None:
        self.width = unit.width
        self.inside = 0.0
        self._unit, self._bench, self._interrupted = unit, bench, interrupted
        self._finals: Callable[[], None] | None = finals
        self._kinds: dict[tuple[str, Config], str | None] = {}
        self._seconds: dict[tuple[str, Config], float] = {}
        self._pace = 0.0  # seconds that a contender's round took, all told, in the last call
        self._building: dict[Build, None] = {}

    def prepare(self, launch: Launch) -> None:
        """Have the launch's binary made ahead; returns at once."""
        self._building[launch.build] = None
        self._unit.ahead(launch.build)

    def abandon(self) -> None:
        """Give up the builds that nobody is going to attempt."""
        self._unit.abandon(self._building)
        self._building.clear()

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        """Compile, verify and time one candidate; whatever it does to the child is Rejected."""

        def work() -> Outcome:
            if isinstance(contender, Launch):
                self._building.pop(contender.build, None)
                self._unit.prepare(contender.build)
            outcome: Outcome = self._call(trial.attempt, contender, self._bench, best, _MEASURING)
            return outcome

        outcome = self._guarded(contender, work)
        if isinstance(outcome, Measured):
            self._seconds[_place(contender)] = outcome.timing.median_ms / 1e3
        return outcome

    def prove(self, launch: Launch) -> Rejected | None:
        """Verify a finalist on hostile operands; None: it holds."""

        def work() -> Rejected | None:
            rejected: Rejected | None = self._call(trial.prove, launch, self._bench)
            return rejected

        self._enter_finals()
        return self._guarded(launch, work)

    def sample(self, contenders: Sequence[Contender], rounds: int) -> Heat:
        """Time contenders that have been attempted, in turn; raises DeviceError where one takes the child down.

        Rounds that take long are asked for a few at a time, so that an interruption is heeded between them.
        """
        self._enter_finals()
        launches = sum(self._seconds.get(_place(contender), 0.0) for contender in contenders)
        step = max(1, int(_PATIENCE / max(launches, self._pace * len(contenders), _PATIENCE / rounds)))
        heats = [self._heat(contenders, min(step, rounds - done)) for done in range(0, rounds, step)]
        return Heat(
            seconds=tuple(
                tuple(chain.from_iterable(parts)) for parts in zip(*(heat.seconds for heat in heats), strict=True)
            ),
            policy=heats[-1].policy,
            conditions=heats[-1].conditions,
            retaken=sum(heat.retaken for heat in heats),
        )

    def kind(self, rejected: Rejected) -> str | None:
        """What kind of fault a rejection of this runner's is; None where the config is not to blame for it."""
        place = rejected.kernel, rejected.config
        if place in self._kinds:
            return self._kinds[place]
        kind = _BY_STAGE.get(rejected.stage)
        return "memory" if kind == "launch" and _MEMORY.search(rejected.reason) else kind

    def _enter_finals(self) -> None:
        if self._finals is not None:
            self._finals()
            self._finals = None

    def _heat(self, contenders: Sequence[Contender], rounds: int) -> Heat:
        started = perf_counter()
        with self._counted():
            try:
                heat: Heat = self._call(trial.sample, contenders, self._bench, rounds)
            except DeviceError as error:
                if len(contenders) == 1:  # nobody else can be to blame
                    self._kinds[_place(contenders[0])] = kind_of(error)
                raise
        self._pace = (perf_counter() - started) / rounds / len(contenders)
        return heat

    def _guarded(self, contender: Contender, work: Callable[[], T]) -> T | Rejected:
        """Whatever a candidate does to its child is a value: it costs one trial."""
        kernel, config = _place(contender)
        _LOG.info("attempt %s %s %s %s", self._bench.job_id, self._bench.problem.key, kernel, config)
        self._kinds.pop((kernel, config), None)
        with self._counted():
            try:
                return work()
            except DeviceError as error:
                self._kinds[kernel, config] = kind_of(error)
                return Rejected(kernel, config, _stage(error), error.message)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._interrupted():
            raise Interrupted
        started = perf_counter()
        try:
            yield
        finally:
            self.inside += perf_counter() - started

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._unit.trials.call(function, *arguments, priority=Priority.MEASUREMENT, deadline=_DEADLINE)


def _place(contender: Contender) -> tuple[str, Config]:
    """Kernel and config; the vendor's library has an empty one."""
    return (contender.kernel, contender.config) if isinstance(contender, Launch) else (trial.VENDOR, Config(()))


def _stage(error: DeviceError) -> str:
    """Where a child was when it failed: compile, launch, verify or measure."""
    return "compile" if isinstance(error, CompileFailed) else str(error.facts.get("stage", "launch"))


def kind_of(error: DeviceError) -> str | None:
    """The kind of fault that an error shows; None for one that no config causes."""
    if _stage(error) == "start":
        return None  # the child could not be set up
    for kind, failure in (("compile", CompileFailed), ("timeout", ChildTimedOut), ("died", ChildDied)):
        if isinstance(error, failure):
            return kind
    if isinstance(error, LaunchFailed):
        return "memory" if _MEMORY.search(error.message) else "launch"
    return None  # such as a bench whose own reference is off
