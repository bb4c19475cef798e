"""What a search strategy is given: the legal configs, the default, features and prior times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels.space import Config


@dataclass(frozen=True, slots=True)
class PriorTimes:
    """What a space's configs took elsewhere: the same kernel on another shape or device. Seconds; a subset will do.

    `distance` is how far away that was, in log2 of m, n, k and batch (0: this shape, on another device).
    """

    seconds: Mapping[Config, float] = field(repr=False)
    distance: float


@dataclass(frozen=True, slots=True)
class SearchInputs:
    """What a strategy is given: the legal configs, the default, their features, and what is known from elsewhere.

    `features` gives a row of floats of one length for every config; the first is the model's log of predicted seconds.
    """

    configs: Sequence[Config] = field(repr=False)
    first: Config
    features: Callable[[Config], Sequence[float]]
    known: Sequence[PriorTimes] = ()
