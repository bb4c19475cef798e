"""TuneSpec: a normalised tune request, with every default explicit, and its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from app.devices.fleet import Fleet, Unit
from app.errors import Invalid, TooLarge, UnknownKernel, Unsupported
from app.services.best.lookup import covering
from app.services.principal import Principal
from app.tuning.search.strategy import STRATEGIES
from kernels import CATALOGUE
from kernels.problem import Problem

KNOWN: Final = "known"  # the strategy that searches nothing
_BUDGET: Final = ("trials", "seconds", "gain_percent")


@dataclass(frozen=True, slots=True)
class TuneSpec:
    """What to tune: problems, where (None: the first device of each model), with what, and how much of it.

    `trials` and `seconds` cover the whole job, shared evenly among its shapes; None means 64 trials a kernel and
    20 s a shape, or no limit beside a `gain_percent`: then the search of a kernel's space ends once its best is
    expected to be beaten by less than so many per cent. The strategy `known` searches nothing: the best config that is
    known is measured again beside the untuned default, the baselines and the vendor's library.
    """

    problems: tuple[Problem, ...]
    device: str | None = None
    kernels: tuple[str, ...] | None = None
    strategy: str = "auto"
    trials: int | None = None
    seconds: float | None = None
    gain_percent: float | None = None
    retune: bool = False


def resolve(order: TuneSpec, fleet: Fleet) -> dict[str, Any]:
    """The order as a request in which equal work is equal text; the budget is a shape's.

    Raises UnknownDevice, NoDevice, UnknownKernel, Unsupported, TooLarge, Invalid.
    """
    if order.strategy not in (*STRATEGIES, KNOWN):
        raise Invalid(f"strategy must be one of {', '.join((*STRATEGIES, KNOWN))}, got {order.strategy!r}")
    for name in order.kernels or ():
        if name not in CATALOGUE:
            raise UnknownKernel(f"there is no kernel {name}; there are {', '.join(CATALOGUE)}")
    units = _units(fleet, order.device)
    for unit in units:
        for problem in order.problems:
            _check(problem, unit, order.kernels)
    shapes = len(order.problems)
    pieces = shapes * len(units)
    return {
        "problems": [asdict(problem) for problem in order.problems],
        "devices": [unit.device.id for unit in units],
        "kernels": list(order.kernels) if order.kernels else None,
        "strategy": order.strategy,
        "trials": max(1, order.trials // shapes) if order.trials else None,
        "seconds": order.seconds / pieces if order.seconds else None,
        "gain_percent": order.gain_percent or None,
    }


def fingerprint(principal: Principal, request: Mapping[str, Any]) -> str:
    """What the same work has in common, however much of it was asked for."""
    work = {name: value for name, value in request.items() if name not in _BUDGET}
    return sha256(json.dumps([principal.name, work], sort_keys=True).encode()).hexdigest()


def rebudgeted(request: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A request with another's budget."""
    return {**request, **{name: other[name] for name in _BUDGET}}


def _units(fleet: Fleet, device_id: str | None) -> list[Unit]:
    first = fleet.unit(device_id)
    if device_id is not None:
        return [first]
    models: dict[str, Unit] = {}
    for unit in fleet.units:
        models.setdefault(unit.device.model, unit)
    return list(models.values())


def _check(problem: Problem, unit: Unit, kernels: Sequence[str] | None) -> None:
    """Refuse at once what no trial could measure."""
    names = [kernel.name for kernel in covering(problem, unit.device)]
    if kernels and not set(kernels) & set(names):
        reasons = "; ".join(f"{name}: {CATALOGUE[name].refusal(problem, unit.device)}" for name in kernels)
        raise Unsupported(f"none of the kernels asked for computes {problem} on {unit.device.id}: {reasons}")
    if problem.bytes > unit.device.memory_bytes:
        raise TooLarge(f"{problem} takes {problem.bytes} bytes", limit=unit.device.memory_bytes, size=problem.bytes)
