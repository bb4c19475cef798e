"""Task: the input of a tune."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.tuning.budget import Forecast
from app.tuning.runner import Contender
from app.tuning.search.search_task import StrategyFactory, make_strategy
from app.tuning.search.strategy import PriorTimes
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class Task:
    """The input of a tune: kernels, problem, device and options.

    The last of `kernels` makes the untuned choice. `known` are prior times of a kernel's configs, `refused` configs
    that failed here before and are not tried. `forecast` predicts the seconds of a trial. The finals of a `thorough`
    tune take their maximal time. `factory` makes each kernel's strategy.
    """

    kernels: Sequence[Kernel]
    problem: Problem
    device: Device
    strategy: str
    seed: int
    known: Mapping[str, Sequence[PriorTimes]] = field(default_factory=dict)
    refused: Mapping[str, Iterable[Config]] = field(default_factory=dict)
    forecast: Callable[[Contender], Forecast] = field(default=lambda _: Forecast())
    thorough: bool = False
    factory: StrategyFactory = make_strategy

    @property
    def untuned(self) -> Launch | None:
        """The default of the last kernel whose space allows one, or None."""
        for kernel in reversed(self.kernels):
            default = kernel.default(self.problem, self.device)
            if kernel.space.refusal(default, self.problem, self.device) is None:
                return kernel.launch(default, self.problem, self.device)
        return None
