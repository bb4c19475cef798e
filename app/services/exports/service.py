"""ExportService: finds the winner of a problem, has its cubin and PTX compiled, and gives a target's files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.devices.fleet import Fleet
from app.errors import Invalid, RefusedConfig, UnknownKernel, Unsupported
from app.exports.archive import zipped
from app.exports.recipe import recipe_of
from app.exports.targets import TARGETS, NotExported, exported, refusal
from app.exports.winner import ExportBinary, Winner
from app.services.best.answer import BestAnswer
from app.services.best.kernel_order import untuned
from app.services.best.lookup import BestConfigs
from app.services.exports.architectures import device_of
from app.services.exports.disassembler import disassembled
from app.tuning.measure.racing import policy_of
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Build
from kernels.problem import Problem
from kernels.space import Config

_KEPT: Final = 32  # compiled builds, some hundred kilobytes each: several targets of a winner are taken in turn


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """What is to be taken away: a problem's winner, or a kernel with a config.

    `device` is an id, None the first; `architecture` takes its place for a GPU that is not here.
    """

    target: str
    problem: Problem
    device: str | None = None
    architecture: str | None = None
    kernel: str | None = None
    config: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """The files of a target in a folder of this name, the winner they are of, and them as a zip."""

    winner: Winner
    target: str
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        """The name of the folder, and of the zip without its suffix."""
        return f"{self.winner.name}-{self.target}"

    def zip(self) -> bytes:
        """All files as a zip, which is the same each time."""
        return zipped(self.name, self.files)


class ExportService:
    """Takes winners away. Compiles by the fleet's compilers, which hold no device."""

    def __init__(self, fleet: Fleet, best: BestConfigs) -> None:
        self._fleet, self._best = fleet, best
        self._compiled = OrderedDict[tuple[str, str], ExportBinary]()
        self._lock = threading.Lock()

    def take(self, spec: ExportSpec) -> Export:
        """Give a target's files.

        Raises Invalid for an unknown target, UnknownKernel, RefusedConfig, Unsupported where the target is not for the
        winner or its tool is not installed, UnknownDevice, NoDevice, and what a compiler raises.
        """
        if spec.target not in TARGETS:
            raise Invalid(f"a target is one of {', '.join(TARGETS)}, got {spec.target}", member="target")
        winner = self._winner(spec)
        if spec.target == "sass":
            winner = replace(winner, binaries=tuple(map(_disassembled, winner.binaries)))
        try:
            return Export(winner, spec.target, exported(winner, spec.target))
        except NotExported as error:
            raise Unsupported(str(error)) from error

    def _winner(self, spec: ExportSpec) -> Winner:
        device = device_of(spec.architecture) if spec.architecture else self._fleet.unit(spec.device).device
        refused = refusal(spec.target, device)
        if refused is not None:
            raise Unsupported(refused)
        if spec.kernel is None and spec.config is not None:
            raise Invalid("a config is a kernel's: give kernel, too", member="config")
        if spec.kernel is None and spec.architecture is None:
            return self._made(self._best.answer(spec.problem, spec.device))
        kernel = next(untuned(spec.problem, device)) if spec.kernel is None else _kernel(spec.kernel)
        clause = kernel.refusal(spec.problem, device)
        if clause is not None:
            raise Unsupported(f"{kernel.name} does not compute {spec.problem} on {device.id}: {clause}")
        config = kernel.default(spec.problem, device) if spec.config is None else _config(kernel, spec.config)
        match = "default" if spec.config is None else "given"
        return self._assembled(kernel, config, spec.problem, device, match)

    def _made(self, answer: BestAnswer) -> Winner:
        timing, accuracy = answer.timing, answer.accuracy
        made = self._assembled(
            CATALOGUE[answer.kernel], answer.config, answer.launch.problem, answer.device, answer.match
        )
        if timing is None or answer.match not in {"exact", "stale"}:
            return made
        return replace(
            made,
            policy=timing.policy,
            environment=answer.environment or made.environment,
            median_ms=timing.median_ms,
            ci95_ms=timing.ci95_ms,
            samples=timing.samples,
            relative_l2=None if accuracy is None else accuracy.relative_l2,
        )

    def _assembled(self, kernel: Kernel, config: Config, problem: Problem, device: Device, match: str) -> Winner:
        rule = kernel.space.refusal(config, problem, device)
        if rule is not None:
            raise RefusedConfig(f"{config} is refused for {problem} on {device.id}: {rule}", rule=rule)
        recipe = recipe_of(kernel, config, problem, device)
        binaries = tuple(self._binary(build, device) for build in recipe.builds)
        policy = policy_of(problem, device)
        return Winner(problem, kernel.name, config, device, recipe, binaries, match, policy, device.environment)

    def _binary(self, build: Build, device: Device) -> ExportBinary:
        if device.platform != "cuda":
            return ExportBinary(build)
        key = build.digest, device.architecture
        with self._lock:
            known = self._compiled.get(key)
        if known is not None:
            return known
        made = self._fleet.compile_both(build, device.architecture)
        binary = ExportBinary(build, made.cubin, made.ptx, made.registers, made.spills)
        with self._lock:
            self._compiled[key] = binary
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return binary


def _disassembled(binary: ExportBinary) -> ExportBinary:
    return binary if binary.cubin is None else replace(binary, sass=disassembled(binary.cubin))


def _kernel(name: str) -> Kernel:
    if name not in CATALOGUE:
        raise UnknownKernel(f"there is no kernel {name}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def _config(kernel: Kernel, values: Mapping[str, int]) -> Config:
    try:
        return kernel.space.config(values)
    except ValueError as error:
        raise Invalid(f"{dict(values)} is no config of {kernel.name}: {error}", member="config") from error
