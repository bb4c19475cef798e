"""Chooses the kernel, config, launch and precision of a product, and what to do about one that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import perf_counter
from typing import Final

from app.devices.fleet import Unit
from app.errors import (
    ChildLost,
    CompileFailed,
    DeviceCordoned,
    DeviceError,
    NoDevice,
    StoreFailed,
    TilewiseError,
    UnknownKernel,
    Unsupported,
    WrongResult,
)
from app.services.best.answer import BestAnswer
from app.services.best.kernel_order import covering, default_launch
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.matmul.buffers import OperandBuffers, Product
from app.services.matmul.device_queue import PendingBuilds
from app.services.tuning.trial_runner import kind_of
from app.worker.serving.launch_class import COMPILING
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

_LOG: Final = logging.getLogger(__name__)
_BUILD: Final = 0.5  # seconds that a build takes at least, roughly
_KNOWN: Final = 4096  # launches of tiles that are remembered
_USUAL: Final = 256  # the size of the problems whose defaults are verified at the start
_STAGES: Final = {"multiply": "launch", "verify_class": "launch"}  # a call that named no phase was launching


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel by name, its launch (None for the vendor's library), and how exact the answer is that named it.

    `problem` is what is computed: the one asked for, or the same in strict precision, for the reason `declined`. That
    of a tile has the `feed` of those that may be queued behind it.
    """

    kernel: str
    launch: Launch | None
    match: str
    problem: Problem
    declined: str | None = None
    feed: TileFeed | None = None

    @property
    def may_follow(self) -> bool:
        """Whether it needs no answer before the launch that is queued next."""
        return self.launch is not None and self.launch.verdict_at is None

    @property
    def had_following(self) -> bool:
        """Whether its worker was given other tiles, too."""
        return self.feed is not None and bool(self.feed.choices)

    def request(self, buffers: OperandBuffers, allowed: float) -> MultiplyRequest:
        """What is asked of a serving worker."""
        request = MultiplyRequest(self.problem, self.launch, *buffers.offsets, buffers.keys, allowed=allowed)
        return replace(request, tile=buffers.tile, has_more=self.feed is not None, sketch=buffers.asked_sketch)

    def product(self, unit: Unit, result: MultiplyResult, together: int, started: float, build: float = 0.0) -> Product:
        """What made a product: `together` is its batch, `started` when it was asked for, by perf_counter.

        `build` are seconds of compiling outside its worker, and of kernels that failed before it.
        """
        phases = {"h2d": result.h2d, "kernel": result.kernel, **({} if result.on_device else {"d2h": result.d2h})}
        if result.build or build:
            phases = {"build": result.build + build, **phases}
        after = sum(each.spent for each in result.following)
        waited, launch = perf_counter() - started - sum(phases.values()) - after, self.launch
        given = self.feed.choices if self.feed is not None else []
        instructions = CATALOGUE[self.kernel].instructions if launch else ""
        return Product(
            unit.device,
            self.kernel,
            dict(launch.config) if launch else {},
            self.match,
            instructions or unit.vendor.name or self.kernel,
            {"queue": max(0.0, waited), **phases},
            together,
            self._precision(unit.device),
            self.declined,
            following=tuple(
                choice.product(unit, made, 1, perf_counter())
                for choice, made in zip(given, result.following, strict=False)
            ),
        )

    def _precision(self, device: Device) -> str:
        """The precision that it is made in, which is strict where a vendor's library has no TF32 to use."""
        if self.launch is not None:
            return CATALOGUE[self.launch.kernel].computed_precision(self.launch.problem)
        precision = self.problem.precision
        return "strict" if precision == "tf32" and not device.limits.tensor_tf32 else precision


class TileFeed:
    """Gives a worker the tiles that follow the one it makes, whenever it asks, as requests of its.

    `choices` are those of all that it was given; there is none after a tile that may not be queued behind another.
    """

    def __init__(
        self, more: Callable[[], Sequence[OperandBuffers]], choose: Callable[[OperandBuffers], KernelChoice | None]
    ) -> None:
        """`more` deals the next tiles; `choose` gives None for one that may not be queued, and may raise."""
        self.choices: list[KernelChoice] = []
        self._more, self._choose, self._is_open = more, choose, True
        self._known: dict[Problem, KernelChoice | None] = {}

    def __call__(self) -> tuple[MultiplyRequest, ...]:
        """The next tiles; none where the worker's answer is waited for."""
        requests = list[MultiplyRequest]()
        for tile in self._more() if self._is_open else ():
            choice = self._choice(tile)
            if choice is None:
                self._is_open = False
                break
            self.choices.append(choice)
            requests.append(choice.request(tile, COMPILING))
        return tuple(requests)

    def _choice(self, tile: OperandBuffers) -> KernelChoice | None:
        if tile.problem not in self._known:
            found = None
            with suppress(TilewiseError):  # it is raised where the tile is asked for alone
                found = self._choose(tile)
            self._known[tile.problem] = found
        return self._known[tile.problem]


@dataclass(slots=True)
class FailedAttempts:
    """What has failed to make one product: the first error, the configs by kernel, and the seconds that this took.

    After one of several tiles failed, nobody knows which, the first `is_alone`.
    """

    first: DeviceError | None = None
    configs: set[tuple[str, Config]] = field(default_factory=set)
    seconds: float = 0.0
    is_alone: bool = False

    def failed(self, choice: KernelChoice, error: DeviceError, seconds: float) -> None:
        """Add a choice that failed, and the seconds that all of them took."""
        self.first = self.first or error
        self.seconds = seconds
        if choice.launch is not None:
            self.configs.add((choice.kernel, choice.launch.config))


class KernelSelector:
    """Chooses kernels for products; with `vendor` the vendor's library serves if it is faster."""

    def __init__(self, best: BestConfigs, quarantine: Quarantine, misses: MissCounter, *, vendor: bool) -> None:
        self._best, self._quarantine, self._misses, self._vendor = best, quarantine, misses, vendor

    def ready(self, problem: Problem, unit: Unit) -> bool:
        """Whether `choose` only looks the answer up."""
        return self._best.knows(problem, unit.device.id)

    def launch(self, problem: Problem, unit: Unit) -> Launch | None:
        """The launch that a device would make a problem by; None if it cannot."""
        try:
            return self._best.answer(problem, unit.device.id).launch
        except TilewiseError:
            return None

    def count(self, problem: Problem, unit: Unit) -> None:
        """Count a miss of a problem, if it is one."""
        self._misses.noted(self._best.answer(problem, unit.device.id))

    def choose(
        self,
        problem: Problem,
        unit: Unit,
        kernel: str | None,
        *,
        counted: bool = True,
        whole: Problem | None = None,
    ) -> KernelChoice:
        """The best there is, or what a forced kernel has; raises UnknownKernel, Unsupported, WrongResult.

        A tile of a `whole` product for which nothing better is known has that product's config: tiles overlap, so that
        it is not their own last waves that count. Small ones have it but for how a large launch is dealt out.
        """
        if kernel == "vendor":
            if unit.vendor.name is None:
                raise Unsupported(f"no vendor library on {unit.device.id}: {unit.vendor.reason}")
            return KernelChoice("vendor", None, "exact", *_by_vendor(problem))
        if kernel is not None and kernel not in CATALOGUE:
            raise UnknownKernel(f"there is no kernel {kernel}; there are {', '.join(CATALOGUE)} and vendor")
        answer = self._best.answer(problem, unit.device.id)
        if kernel is None and counted:
            self._misses.noted(answer)
        if kernel is None and self._vendor and answer.vendor_is_faster:
            return KernelChoice("vendor", None, answer.match, *_by_vendor(problem))
        if kernel is None and whole is not None and answer.match != "exact":
            answer = self._as_of_whole(answer, whole, unit)
        if kernel is None or kernel == answer.kernel:
            return KernelChoice(answer.kernel, answer.launch, answer.match, answer.launch.problem, answer.declined)
        return self._forced(kernel, answer.launch.problem, unit, answer.declined)

    def _as_of_whole(self, answer: BestAnswer, whole: Problem, unit: Unit) -> BestAnswer:
        """The answer of a whole product for its tile, where that may have it; else the tile's own."""
        problem, found = answer.launch.problem, self._best.answer(whole, unit.device.id)
        kernel = CATALOGUE[found.kernel]
        if found.launch.problem.precision != problem.precision or kernel.refusal(problem, unit.device) is not None:
            return answer
        plain = {name: kernel.space.parameters[name][0] for name in kernel.arguments}
        for config in (found.config, kernel.space.config({**found.config, **plain})):
            launch = _launch(found.kernel, config, problem, unit.device)
            if launch is not None:
                is_held = self._quarantine.holds(unit.device, found.kernel, config, problem) is not None
                return answer if is_held else replace(found, config=config, launch=launch)
        return answer

    def feed(
        self, more: Callable[[], Sequence[OperandBuffers]], unit: Unit, kernel: str | None, builds: PendingBuilds
    ) -> TileFeed:
        """Gives a device's worker the tiles that there are `more` of, until the first that may not be queued."""

        def choose(tile: OperandBuffers) -> KernelChoice | None:
            found = self.choose(tile.problem, unit, kernel, whole=tile.whole)
            return found if found.may_follow and found.launch and builds.is_built(unit, found.launch) else None

        return TileFeed(more, choose)

    def below(self, problem: Problem, unit: Unit, failed: Collection[tuple[str, Config]]) -> KernelChoice:
        """What is left once some kernels' configs have failed to make a product; raises Unsupported."""
        answer = self._best.below(problem, unit.device.id, failed)
        return KernelChoice(answer.kernel, answer.launch, answer.match, answer.launch.problem, answer.declined)

    def lowest(self, choice: KernelChoice, unit: Unit) -> KernelChoice | None:
        """The lowest kernel in place of one that is not built, in a config that serves every size; None if it is slow.

        Others wait while a product is made: one that would take longer than a build is worth none.
        """
        problem = choice.problem
        kernel = covering(problem, unit.device)[0]
        try:
            config = kernel.default(replace(problem, m=_USUAL, n=_USUAL, k=_USUAL, batch=1), unit.device)
            launch = kernel.launch(config, problem, unit.device)
        except ValueError:
            return None
        is_held = self._quarantine.holds(unit.device, kernel.name, config, problem) is not None
        if is_held or predict(kernel, config, problem, unit.device) > _BUILD:
            return None
        return KernelChoice(kernel.name, launch, "default", problem, choice.declined)

    def _forced(self, name: str, problem: Problem, unit: Unit, declined: str | None) -> KernelChoice:
        record, kernel = self._best.record(unit.device.model, problem), CATALOGUE[name]
        unsuited = kernel.refusal(problem, unit.device)
        if unsuited is not None:
            raise Unsupported(f"{name} does not compute {problem} on {unit.device.id}: {unsuited}")
        trial = getattr(record, name, None) if record else None
        if trial is not None and trial.state == "measured":
            launch = kernel.launch(kernel.space.config(trial.config), problem, unit.device)
            if self._quarantine.holds(unit.device, name, launch.config, problem) is None:
                return KernelChoice(name, launch, "exact", problem, declined)
        launch = default_launch(kernel, problem, unit.device)
        reason = self._quarantine.holds(unit.device, name, launch.config, problem)
        if reason is not None:
            raise WrongResult(f"{name} {launch.config} is quarantined on {unit.device.id}: {reason}")
        return KernelChoice(name, launch, "default", problem, declined)


@lru_cache(_KNOWN)
def _launch(kernel: str, config: Config, problem: Problem, device: Device) -> Launch | None:
    """The launch of a problem by another one's config; None where the space refuses that."""
    try:
        return CATALOGUE[kernel].launch(config, problem, device)
    except ValueError:
        return None


def strictly(problem: Problem) -> Problem:
    """The same problem in strict precision."""
    return replace(problem, precision="strict")


def _by_vendor(problem: Problem) -> tuple[Problem, str | None]:
    """The vendor's library emulates nothing."""
    if problem.precision != "emulated":
        return problem, None
    return strictly(problem), "the vendor's library computes it strictly"


class ServingFailures:
    """Quarantines what fails where products are served."""

    def __init__(self, quarantine: Quarantine, best: BestConfigs) -> None:
        self._quarantine, self._best = quarantine, best

    def record(self, unit: Unit, launch: Launch | None, error: DeviceError) -> str | None:
        """Quarantine a launch for its error; gives the kind of fault, or None if it is not the launch's.

        The lowest kernel of a problem is quarantined for wrong answers alone: there is none to take its place.
        """
        kind = "wrong" if isinstance(error, WrongResult) else kind_of(error)
        if launch is None or kind in {None, "memory"}:
            return None
        if self._quarantine.holds(unit.device, launch.kernel, launch.config, launch.problem) is not None:
            return kind
        self._quarantine_launch(unit, launch, str(kind), error)
        self._best.changed()
        return kind

    def strike(self, unit: Unit, launch: Launch, error: DeviceError) -> None:
        """Quarantine for good what was suspected and failed again."""
        kind = "wrong" if isinstance(error, WrongResult) else kind_of(error)
        if kind not in {None, "memory"}:
            self._quarantine_launch(unit, launch, str(kind), error)

    def _quarantine_launch(self, unit: Unit, launch: Launch, kind: str, error: DeviceError) -> None:
        if kind == "wrong":
            try:
                self._quarantine.condemn(unit.device, launch, error.message)
            except StoreFailed as failure:  # it is held in memory
                _LOG.warning("the fault of %s %s is not stored: %s", launch.kernel, launch.config, failure.message)
        elif not is_lowest(unit, launch):
            self._quarantine.suspect(unit.device, launch, kind, stage_of(error), error.message)


def is_lowest(unit: Unit, launch: Launch) -> bool:
    """Whether no kernel of the ladder stands below a launch's, for its problem."""
    return covering(launch.problem, unit.device)[0].name == launch.kernel


def stage_of(error: DeviceError) -> str:
    """The stage at which a serving worker failed: compile, verify or launch."""
    stage = "compile" if isinstance(error, CompileFailed) else str(error.facts.get("stage", "launch"))
    return _STAGES.get(stage, stage)


def another_may_do(error: DeviceError) -> bool:
    """Whether a failed product may be made by another kernel; not if there is no worker."""
    return not isinstance(error, NoDevice | ChildLost | DeviceCordoned) and error.facts.get("stage") != "start"
