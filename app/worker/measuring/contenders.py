"""Cache of compiled contenders: how each is launched, timed and evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from math import ceil
from time import monotonic
from typing import Final

from app.devices.backend import Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.errors import CompileFailed, LaunchFailed
from app.tuning.measure.racing import EVENTS, GRAPH
from app.tuning.outcome import Compilation, Rejected
from app.tuning.runner import Contender
from app.worker.state import CompilationTimes
from kernels import KERNELS
from kernels.cost_model import predict
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

VENDOR: Final = "vendor"
_KEPT: Final = 32  # PoCL takes 0.15 s to load one again
_FIRST: Final = 30.0  # seconds for a compilation while none has been seen to end
_COMPILING: Final = 15.0  # seconds at least: others may use the host's cores too
_SLOWER: Final = 8.0  # times the slowest compilation seen: one that takes longer is taken for hung
_WARMING: Final = 5.0  # seconds for a launch on a few elements, and for what a driver puts off until then
_SHORTEST: Final = 2.0  # seconds: no launch is taken for hung before
_PATIENCE: Final = 10.0  # times its expected seconds that a launch may take
_TURN: Final = 2e-3  # seconds of launches after which the device is offered to a product
_MOST: Final = 1000  # launches of one graph
_LOOKS: Final = 8  # launches that say how many a graph is to have


def none_declined() -> int:
    """The verdict of contenders that never decline."""
    return 0


class OperandRotation:
    """Sets of operands that launches use in turn, without end, so that none finds its own in the cache."""

    def __init__(self, sets: Sequence[Operands]) -> None:
        self._sets = sets
        self._next = cycle(sets)

    def following(self, count: int) -> tuple[Operands, ...]:
        """The next sets."""
        return tuple(islice(self._next, count))

    def first(self, count: int) -> tuple[Operands, ...]:
        """Sets from the first one on, the same at every call: a graph of them is captured once."""
        return tuple(islice(cycle(self._sets), count))


@dataclass(slots=True)
class LoadedContender:
    """A compiled contender.

    `slowest` is its longest launch in seconds, 0 before the first. `together` is the launches in one of its graphs, 0
    before the first graph. `declined` gives the verdict of the last `run`.
    """

    kernel: str
    config: Config
    run: Callable[[Operands], None]
    time: Callable[[Sequence[Operands], str], list[float]]
    predicted: float
    program: Program | None = None
    slowest: float = 0.0
    together: int = 0
    declined: Callable[[], int] = none_declined
    compilation: Compilation | None = None

    def rejected(self, stage: str, reason: str) -> Rejected:
        """Say why it was not timed."""
        return Rejected(self.kernel, self.config, stage, reason, self.compilation)

    def deadline(self, launches: int = 1) -> float:
        """Seconds after which `launches` launches count as hung: ten times their measured or predicted time."""
        return max(_SHORTEST, _PATIENCE * launches * (self.slowest or self.predicted))

    def taking(self, link: WorkerLink, rotation: OperandRotation, policy: str) -> Callable[[int], list[float]]:
        """A function that takes n samples in one lease; a product waits for at most 2 ms of launches, or one launch."""

        def take(count: int) -> list[float]:
            seconds: list[float] = []
            with link.lease(self.deadline()):
                if policy == GRAPH and not self.together:
                    self._size_graph(link, rotation)
                while len(seconds) < count:
                    most = count - len(seconds)
                    sets = rotation.first(self.together) if policy == GRAPH else rotation.following(self._turn(most))
                    seconds += self._timed(link, sets, policy)
            return seconds

        return take

    def _size_graph(self, link: WorkerLink, rotation: OperandRotation) -> None:
        """A turn's worth of launches, by the shortest of a few.

        The first ones may take twenty times as long as any after them, and a short graph's start, of some 4 us on an
        H200, would be a part of every launch's time.
        """
        self._timed(link, rotation.following(1), EVENTS)
        seconds = self._timed(link, rotation.following(1), EVENTS)[0]
        looks = rotation.following(min(_LOOKS, int(_TURN / seconds)))
        if looks:
            seconds = min(seconds, *self._timed(link, looks, EVENTS))
        self.together = max(1, min(_MOST, ceil(_TURN / seconds)))

    def _turn(self, most: int) -> int:
        return max(1, min(most, int(_TURN / self.slowest))) if self.slowest else 1

    def _timed(self, link: WorkerLink, sets: tuple[Operands, ...], policy: str) -> list[float]:
        link.offer(self.deadline(len(sets)))
        seconds = self.time(sets, policy)
        self.slowest = max(self.slowest, *seconds)
        return seconds


@dataclass
class ContenderCache:
    """Compiled contenders, the least recently used first."""

    contenders: OrderedDict[object, LoadedContender] = field(default_factory=OrderedDict)


def loaded(held: WorkerContext, link: WorkerLink, contender: Contender) -> LoadedContender | Rejected:
    """A compiled and warm contender, from the cache or new.

    Rejected at stage compile, launch, or space if there is no vendor library. Raises CompileFailed or LaunchFailed if
    the device is lost to this process (facts: fatal).
    """
    kept = held.state(ContenderCache).contenders
    key = contender if isinstance(contender, Problem) else (contender.build.digest, contender.config, contender.problem)
    if key not in kept:
        made = _vendor(held, contender) if isinstance(contender, Problem) else _compiled(held, link, contender)
        if isinstance(made, Rejected):
            return made
        kept[key] = made
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return kept[key]


def warm(held: WorkerContext, link: WorkerLink, program: Program, launch: Launch) -> None:
    """Have nothing left to compile for a launch; raises LaunchFailed."""
    link.phase("compile", _compiling(held))
    held.backend.warm(program, launch, partial(_end_compiling, held, link, monotonic()))


def _compiling(held: WorkerContext) -> float:
    """Seconds that a compilation in this child may take now: several times the slowest seen."""
    slowest = held.state(CompilationTimes).slowest
    return _FIRST if slowest is None else max(_COMPILING, _SLOWER * slowest)


def _end_compiling(held: WorkerContext, link: WorkerLink, started: float) -> None:
    times = held.state(CompilationTimes)
    times.last = monotonic() - started
    times.slowest = max(times.slowest or 0.0, times.last)
    link.phase("launch", _WARMING)


def _compiled(held: WorkerContext, link: WorkerLink, launch: Launch) -> LoadedContender | Rejected:
    backend, started, stage = held.backend, monotonic(), "compile"
    link.phase("compile", _compiling(held))
    try:
        program = backend.compile(launch.build)
        stage = "launch"
        backend.warm(program, launch, partial(_end_compiling, held, link, started))
        compilation = _compilation(held, program, launch)
    except (CompileFailed, LaunchFailed) as error:
        if error.facts.get("fatal"):
            raise
        return Rejected(launch.kernel, launch.config, stage, error.message)
    return LoadedContender(
        launch.kernel,
        launch.config,
        run=partial(backend.run, program, launch),
        time=partial(backend.time, program, launch),
        predicted=predict(KERNELS[launch.kernel], launch.config, launch.problem, backend.device),
        program=program,
        declined=partial(backend.declined, launch),
        compilation=compilation,
    )


def _compilation(held: WorkerContext, program: Program, launch: Launch) -> Compilation:
    """What is known of a launch that is warm. A backend that compiles as it launches first took until then."""
    told = held.backend.resources(program, launch)
    seconds = held.state(CompilationTimes).last if program.compile_seconds is None else program.compile_seconds
    return Compilation(
        seconds=seconds,
        registers=program.registers,
        local_bytes=program.spills,
        shared_bytes=told.shared_bytes,
        constant_bytes=told.constant_bytes,
        max_threads=told.max_threads,
        grid=launch.grid,
        block=launch.block,
    )


def _vendor(held: WorkerContext, problem: Problem) -> LoadedContender | Rejected:
    backend, vendor = held.backend, held.backend.vendor
    if vendor.name is None:
        return Rejected(VENDOR, Config(()), "space", vendor.reason or "no vendor library here")
    return LoadedContender(
        VENDOR,
        Config(()),
        run=partial(backend.vendor_run, problem),
        time=partial(backend.vendor_time, problem),
        predicted=_naive_seconds(problem, backend.device),
    )


def _naive_seconds(problem: Problem, device: Device) -> float:
    naive = KERNELS["naive"]
    return predict(naive, naive.default(problem, device), problem, device)
