"""Interpolation of logarithms of losses by distance (kriging: Cressie, Statistics for Spatial Data, 1993)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

_NOISE: Final = 0.05  # variance of what no distance explains, over that of what it does
_FLOOR: Final = 0.1  # the least spread of a logarithm of a loss: timing noise, and the winner's curse of short tunes


@dataclass(frozen=True, slots=True)
class LossStatistics:
    """Mean and variance of the losses of some shapes."""

    mean: float
    variance: float

    @classmethod
    def of(cls, losses: Floats, prior: float) -> LossStatistics:
        """Two shapes' worth of a prior beside them: a handful of losses says little of how large they are elsewhere."""
        mean = (losses.sum() + 2 * prior) / (losses.size + 2)
        return cls(mean, (np.square(losses - mean).sum() + 2 * prior**2) / (losses.size + 2))


def krige(
    among: Floats, here: Floats, known: Mask, elsewhere: Mask, losses: Floats, learned: LossStatistics
) -> tuple[Floats, Floats]:
    """Each column's prediction and its spread; the mean of a column with few values shrinks towards that of all.

    A winner's loss of zero on its own shape does not count in its mean.
    """
    rows = len(here)
    unit = np.eye(rows)
    among = among + _NOISE * unit
    if known.all():
        solved = np.linalg.solve(among, np.column_stack([here, np.ones(rows), losses]))
        weights, ones, values = solved[:, :1], solved[:, 1:2], solved[:, 2:]
    else:
        mask = known.T
        right = np.empty((*mask.shape, 3))
        right[:, :, 0], right[:, :, 1], right[:, :, 2] = mask * here, mask, losses.T
        solved = np.linalg.solve(np.where(mask[:, :, None] & mask[:, None, :], among, unit), right)
        weights, ones, values = (solved[:, :, part].T for part in range(3))
    ones_elsewhere = np.maximum(ones, 0) * elsewhere
    mean = ((ones_elsewhere * losses).sum(axis=0) + learned.mean) / (ones_elsewhere.sum(axis=0) + 1)
    rest = losses - mean * known
    found = mean + (weights * rest).sum(axis=0)
    power = (rest * (values - mean * ones)).sum(axis=0) + 2 * learned.variance
    left = np.maximum(1 + _NOISE - (weights * (here[:, None] * known)).sum(axis=0), _NOISE)
    return found, _FLOOR + np.sqrt(np.maximum(power, 0) / (known.sum(axis=0) + 2) * left)


def alike(distances: Floats, reach: float) -> Floats:
    """How alike losses are at a distance: Matern's correlation of smoothness 3/2."""
    scaled = distances * (3**0.5 / reach)
    correlation: Floats = (1 + scaled) * np.exp(-scaled)
    return correlation
