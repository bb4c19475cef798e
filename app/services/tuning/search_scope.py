"""Which kernels and configs a tune searches for a problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.services.best.lookup import covering
from app.services.tuning.progress import JobBudget
from app.services.tuning.request import KNOWN
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config, Space

_BASELINES: Final = ("naive", "tiled")
_LISTED: Final = 10_000  # configs, legal or not: the legal ones of a larger space are more than a budget allows


@dataclass(frozen=True, slots=True)
class RestrictedSpace(Space):
    """A space of which only some configs are wanted."""

    wanted: tuple[Config, ...] = ()

    def __iter__(self) -> Iterator[Config]:
        return iter(self.wanted)

    def __len__(self) -> int:
        return len(self.wanted)

    def legal(self, problem: Problem, device: Device) -> list[Config]:
        """Those of the wanted that no rule refuses."""
        return [config for config in self.wanted if self.refusal(config, problem, device) is None]


def searched(problem: Problem, device: Device, request: Mapping[str, Any]) -> list[Kernel]:
    """The kernels to search: those that a request names, and always the baselines; raises Unsupported for none.

    Where it lists `configs`, a kernel's space is those of them that are its own, and its default; a config that names a
    problem is for that one. The strategy `known` has but the kernels of these, and the one whose default is untuned's.
    """
    asked, configs = request["kernels"], request.get("configs")
    covered = covering(problem, device)
    if request["strategy"] == KNOWN:
        asked = {covered[-1].name, *(entry["kernel"] for entry in _listed(problem, configs or ()))}
    kernels = [kernel for kernel in covered if asked is None or kernel.name in {*asked, *_BASELINES}]
    return kernels if configs is None else [_narrowed(kernel, problem, device, configs) for kernel in kernels]


def expected(problem: Problem, device: Device, request: Mapping[str, Any]) -> int:
    """How many trials a problem takes at most: the vendor's, and each kernel's share or its whole space."""
    kernels = searched(problem, device, request)
    most = JobBudget.of(request).each(len(kernels)).trials
    return 1 + sum(_most(kernel, problem, device, most) for kernel in kernels)


def _most(kernel: Kernel, problem: Problem, device: Device, trials: int | None) -> int:
    if trials is not None and len(kernel.space) > _LISTED:
        return trials
    size = len(kernel.space.legal(problem, device))
    return size if trials is None else min(trials, size)


def configs_of(configs: Iterable[tuple[str, Config]]) -> list[dict[str, Any]]:
    """Configs by kernel, as a request lists them."""
    return [{"kernel": kernel, "config": dict(config)} for kernel, config in configs]


def _listed(problem: Problem, configs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [entry for entry in configs if entry.get("problem", problem.key) == problem.key]


def _narrowed(kernel: Kernel, problem: Problem, device: Device, configs: Sequence[Mapping[str, Any]]) -> Kernel:
    kept = {kernel.default(problem, device)}
    for entry in _listed(problem, configs):
        try:
            if entry["kernel"] == kernel.name:
                kept.add(kernel.space.config(entry["config"]))
        except ValueError:
            continue  # the space has changed since it was stored
    wanted = tuple(sorted(kept, key=lambda config: tuple(config.values())))
    values = {name: tuple(sorted({config[name] for config in kept})) for name in kernel.space.parameters}
    rules = {**kernel.space.rules, "is not among those asked for": lambda config, _problem, _device: config in kept}
    return replace(kernel, space=RestrictedSpace(values, rules, wanted=wanted))
