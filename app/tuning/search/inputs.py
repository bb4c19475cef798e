"""The inputs of a search strategy: legal configs, default, features and prior times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels.space import Config


@dataclass(frozen=True, slots=True)
class PriorTimes:
    """Seconds of a space's configs, or of some, on another shape or device.

    `distance` is in log2 of m, n, k and batch (0: this shape, on another device).
    """

    seconds: Mapping[Config, float] = field(repr=False)
    distance: float


@dataclass(frozen=True, slots=True)
class SearchInputs:
    """The inputs of a strategy: legal configs, default, features and prior times.

    `features` gives a row of floats of one length for every config; the first is the model's log of predicted seconds,
    which `predicted` gives alone, at less cost where it is there.
    """

    configs: Sequence[Config] = field(repr=False)
    first: Config
    features: Callable[[Config], Sequence[float]]
    known: Sequence[PriorTimes] = ()
    predicted: Callable[[Config], float] | None = None

    def prediction(self, config: Config) -> float:
        """The model's log of a config's predicted seconds; 0 where there are no features."""
        return self.predicted(config) if self.predicted else next(iter(self.features(config)), 0.0)
