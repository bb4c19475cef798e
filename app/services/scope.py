"""What a tune of one problem covers: the kernels that are searched, and of each all of its space or a few configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from app.services.best import covering
from app.services.running import Allowance
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config, Space

_BASELINES: Final = ("naive", "tiled")


def searched(problem: Problem, device: Device, request: Mapping[str, Any]) -> list[Kernel]:
    """The kernels to search: those that a request names, and always the baselines; raises Unsupported for none.

    Where it lists `configs`, a kernel's space is those of them that are its own, and its default.
    """
    asked, configs = request["kernels"], request.get("configs")
    kernels = [kernel for kernel in covering(problem, device) if asked is None or kernel.name in {*asked, *_BASELINES}]
    return kernels if configs is None else [_narrowed(kernel, problem, device, configs) for kernel in kernels]


def expected(problem: Problem, device: Device, request: Mapping[str, Any]) -> int:
    """How many trials a problem takes at most: the vendor's, and each kernel's share or its whole space."""
    kernels = searched(problem, device, request)
    most = Allowance.of(request).each(len(kernels)).trials
    sizes = (len(kernel.space.legal(problem, device)) for kernel in kernels)
    return 1 + sum(size if most is None else min(most, size) for size in sizes)


def configs_of(configs: Iterable[tuple[str, Config]]) -> list[dict[str, Any]]:
    """Configs by kernel, as a request lists them."""
    return [{"kernel": kernel, "config": dict(config)} for kernel, config in configs]


def _narrowed(kernel: Kernel, problem: Problem, device: Device, configs: Sequence[Mapping[str, Any]]) -> Kernel:
    kept = {kernel.default(problem, device)}
    for entry in configs:
        try:
            if entry["kernel"] == kernel.name:
                kept.add(kernel.space.config(entry["config"]))
        except ValueError:
            continue  # the space has changed since it was stored
    values = {name: tuple(sorted({config[name] for config in kept})) for name in kernel.space.parameters}
    rules = {**kernel.space.rules, "is not among those asked for": lambda config, _problem, _device: config in kept}
    return replace(kernel, space=Space(values, rules))
