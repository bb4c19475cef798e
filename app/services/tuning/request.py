"""TuneSpec: a tune request, with every default explicit once it is normalised, and what of each space it searches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from app.devices.fleet import Fleet, Unit
from app.errors import Invalid, TooLarge, UnknownKernel, Unsupported
from app.services.best.kernel_order import searched
from app.services.principal import Principal
from app.tuning.budget import Budget
from app.tuning.search.strategy import STRATEGIES
from kernels import KERNELS
from kernels.device import Device
from kernels.kernel import LESSON, Kernel
from kernels.problem import Problem
from kernels.space import Config, Space

KNOWN: Final = "known"  # the strategy that searches nothing
_HOW: Final = ("trials", "seconds", "gain_percent", "weights", "spread")  # no part of what the work is
_BASELINES: Final = ("naive", "tiled")
_LISTED: Final = 10_000  # configs, legal or not: the legal ones of a larger space are more than a budget allows


@dataclass(frozen=True, slots=True)
class ListedConfig:
    """A config that a request lists, by kernel; `problem` is the key of the only problem it is for, None: for all."""

    kernel: str
    config: Config
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry in a stored request."""
        named = {} if self.problem is None else {"problem": self.problem}
        return {**named, "kernel": self.kernel, "config": dict(self.config)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ListedConfig:
        """Read the entry of a stored request."""
        return cls(entry["kernel"], Config.of(entry["config"]), entry.get("problem"))


@dataclass(frozen=True, slots=True)
class TuneSpec:
    """What to tune: problems, where (no devices: the first of each model), with what, and how much of it.

    The budget covers the whole job, shared evenly among its shapes; once normalised it is a shape's. The strategy
    `known` searches nothing: the best config that is known is measured again beside the untuned default, the baselines
    and the vendor's library. Where `configs` are listed, a kernel's space is those of them that are its own. `idle`
    work is done while no client waits. With `retune` no finished job is joined; that is not stored. With `weights`, one
    a problem, the seconds are shared by these in place of evenly.
    """

    problems: tuple[Problem, ...]
    devices: tuple[str, ...] = ()
    kernels: tuple[str, ...] | None = None
    strategy: str = "auto"
    budget: Budget = field(default_factory=Budget)
    configs: tuple[ListedConfig, ...] | None = None
    idle: bool = False
    retune: bool = False
    weights: tuple[float, ...] | None = None
    spread: bool = False

    @property
    def seconds(self) -> float | None:
        """The seconds of the whole job of a normalised spec; None if they are not limited."""
        return _job_seconds(self.budget, len(self.problems), len(self.devices))

    def to_json(self) -> dict[str, Any]:
        """A normalised spec as it is stored: equal work is equal text."""
        configs = {} if self.configs is None else {"configs": [one.to_json() for one in self.configs]}
        return {
            "problems": [asdict(problem) for problem in self.problems],
            "devices": list(self.devices),
            "kernels": list(self.kernels) if self.kernels else None,
            "strategy": self.strategy,
            **asdict(self.budget),
            **configs,
            **({"idle": True} if self.idle else {}),
            **({} if self.weights is None else {"weights": list(self.weights)}),
            **({"spread": True} if self.spread else {}),
        }

    @classmethod
    def from_json(cls, request: Mapping[str, Any]) -> TuneSpec:
        """Read a stored request."""
        configs, kernels, weights = request.get("configs"), request["kernels"], request.get("weights")
        return cls(
            problems=tuple(Problem(**each) for each in request["problems"]),
            devices=tuple(request["devices"]),
            kernels=None if kernels is None else tuple(kernels),
            strategy=request["strategy"],
            budget=_budget(request),
            configs=None if configs is None else tuple(map(ListedConfig.from_json, configs)),
            idle=bool(request.get("idle")),
            weights=None if weights is None else tuple(weights),
            spread=bool(request.get("spread")),
        )


def budget_seconds(request: Mapping[str, Any]) -> float | None:
    """As TuneSpec.seconds of a stored request, whose problems are not read: lists of jobs tell it."""
    return _job_seconds(_budget(request), len(request["problems"]), len(request["devices"]))


def normalize(spec: TuneSpec, fleet: Fleet) -> TuneSpec:
    """The spec with its devices named and a shape's budget.

    Raises UnknownDevice, NoDevice, UnknownKernel, Unsupported, TooLarge, Invalid.
    """
    if spec.strategy not in (*STRATEGIES, KNOWN):
        raise Invalid(f"strategy must be one of {', '.join((*STRATEGIES, KNOWN))}, got {spec.strategy!r}")
    for name in spec.kernels or ():
        if name not in KERNELS:
            raise UnknownKernel(f"there is no kernel {name}; there are {', '.join(KERNELS)}")
    if is_lesson(spec) and {KERNELS[name].role for name in spec.kernels or ()} != {LESSON}:
        raise Invalid("lessons are measured by a job of their own, since what it finds is never served")
    units = _units(fleet, spec.devices)
    for unit in units:
        for problem in spec.problems:
            _check(problem, unit, spec)
    shapes, whole = len(spec.problems), spec.budget
    budget = Budget(
        trials=max(1, whole.trials // shapes) if whole.trials else None,
        seconds=whole.seconds / (shapes * len(units)) if whole.seconds else None,
        gain_percent=whole.gain_percent or None,
    )
    named = tuple(unit.device.id for unit in units)
    return replace(spec, devices=named, kernels=spec.kernels or None, budget=budget, spread=not spec.devices)


def is_lesson(spec: TuneSpec) -> bool:
    """Whether a spec names lessons: its job measures them, and what it finds serves no product."""
    return any(KERNELS[name].role == LESSON for name in spec.kernels or () if name in KERNELS)


def fingerprint(principal: Principal, spec: TuneSpec) -> str:
    """The digest of a normalised spec without its budget: the same work has the same."""
    work = {name: value for name, value in spec.to_json().items() if name not in _HOW}
    return sha256(json.dumps([principal.name, work], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RestrictedSpace(Space):
    """A space restricted to some of its configs."""

    wanted: tuple[Config, ...] = ()

    def __iter__(self) -> Iterator[Config]:
        return iter(self.wanted)

    def __len__(self) -> int:
        return len(self.wanted)

    def legal(self, problem: Problem, device: Device) -> list[Config]:
        """Those of the wanted that no rule refuses."""
        return [config for config in self.wanted if self.refusal(config, problem, device) is None]


def kernels_to_search(problem: Problem, device: Device, spec: TuneSpec) -> list[Kernel]:
    """The kernels that a spec names, and the baselines if these are no lessons; raises Unsupported for none.

    Where it lists configs, a kernel's space is those of them that are its own, and its default. The strategy `known`
    has only the kernels of these, and the one whose default is untuned's.
    """
    covered = _candidates(problem, device, spec)
    listed = None if spec.configs is None else [one for one in spec.configs if one.problem in {None, problem.key}]
    asked = None if spec.kernels is None else {*spec.kernels}
    if spec.strategy == KNOWN:
        asked = {covered[-1].name, *(one.kernel for one in listed or ())}
    kernels = [kernel for kernel in covered if asked is None or kernel.name in {*asked, *_BASELINES}]
    return kernels if listed is None else [_restricted(kernel, problem, device, listed) for kernel in kernels]


def _candidates(problem: Problem, device: Device, spec: TuneSpec) -> list[Kernel]:
    """The kernels that a job may try: the lessons that it names, else all that may serve."""
    if not is_lesson(spec):
        return searched(problem, device)
    return [KERNELS[name] for name in spec.kernels or () if KERNELS[name].covers(problem, device)]


def max_trials(problem: Problem, device: Device, spec: TuneSpec) -> int:
    """How many trials a problem takes at most: the vendor's, and each kernel's share or its whole space."""
    kernels = kernels_to_search(problem, device, spec)
    share = spec.budget.of_kernel(len(kernels)).trials
    return 1 + sum(_max_trials_of_kernel(kernel, problem, device, share) for kernel in kernels)


def _max_trials_of_kernel(kernel: Kernel, problem: Problem, device: Device, trials: int | None) -> int:
    if trials is not None and len(kernel.space) > _LISTED:
        return trials
    size = len(kernel.space.legal(problem, device))
    return size if trials is None else min(trials, size)


def _restricted(kernel: Kernel, problem: Problem, device: Device, listed: Sequence[ListedConfig]) -> Kernel:
    kept = {kernel.default(problem, device)}
    for one in listed:
        try:
            if one.kernel == kernel.name:
                kept.add(kernel.space.config(one.config))
        except ValueError:
            continue  # the space has changed since it was stored
    wanted = tuple(sorted(kept, key=lambda config: tuple(config.values())))
    values = {name: tuple(sorted({config[name] for config in kept})) for name in kernel.space.parameters}
    rules = {**kernel.space.rules, "is not among those asked for": lambda config, _problem, _device: config in kept}
    return replace(kernel, space=RestrictedSpace(values, rules, wanted=wanted))


def _budget(request: Mapping[str, Any]) -> Budget:
    return Budget(request["trials"], request["seconds"], request.get("gain_percent"))


def _job_seconds(budget: Budget, problems: int, devices: int) -> float | None:
    """A shape's seconds times the shapes."""
    each = budget.of_kernel(1).seconds
    return None if each is None else each * problems * devices


def _units(fleet: Fleet, device_ids: Sequence[str]) -> list[Unit]:
    first = fleet.unit(None if not device_ids else device_ids[0])
    if device_ids:
        return [first, *map(fleet.unit, device_ids[1:])]
    models: dict[str, Unit] = {}
    for unit in fleet.units:
        if unit.trials.takes_calls:
            models.setdefault(unit.device.model, unit)
    return list(models.values()) or [first]


def _check(problem: Problem, unit: Unit, spec: TuneSpec) -> None:
    """Refuse at once what no trial could measure, and any trial on a device that is cordoned or lost."""
    unit.trials.expect_calls()
    names = [kernel.name for kernel in _candidates(problem, unit.device, spec)]
    if spec.kernels and not set(spec.kernels) & set(names):
        reasons = "; ".join(f"{name}: {KERNELS[name].refusal(problem, unit.device)}" for name in spec.kernels)
        raise Unsupported(f"none of the kernels asked for computes {problem} on {unit.device.id}: {reasons}")
    if problem.bytes > unit.device.memory_bytes:
        raise TooLarge(f"{problem} takes {problem.bytes} bytes", limit=unit.device.memory_bytes, size=problem.bytes)
