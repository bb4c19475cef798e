"""Interleaved sampling: rounds in random order, so that all contenders are timed under equal conditions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from app.tuning.measure.drift import DriftDetector

_SPARE: Final = 16  # rounds that may be retaken besides one for each that is asked


def sample_interleaved(
    takes: Sequence[Callable[[], float]],
    reference: Callable[[], float],
    watch: DriftDetector,
    rounds: int,
    rng: random.Random,
) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Sample every contender once a round; gives each one's seconds, and how many rounds were retaken.

    A round ends where the watch is disturbed after one of its samples, and is taken again whole, so that its samples
    are of the same moment. At most `rounds` + 16 are; after that, samples count however disturbed the device is.
    """
    seconds: list[list[float]] = [[] for _ in takes]
    retaken = kept = 0
    while kept < rounds:
        taken = _round(takes, reference, watch, rng, patient=retaken < rounds + _SPARE)
        if taken is None:
            retaken += 1
            continue
        kept += 1
        for samples, sample in zip(seconds, taken, strict=True):
            samples.append(sample)
    return tuple(map(tuple, seconds)), retaken


def _round(
    takes: Sequence[Callable[[], float]],
    reference: Callable[[], float],
    watch: DriftDetector,
    rng: random.Random,
    *,
    patient: bool,
) -> list[float] | None:
    """One sample of each contender; None if a sample was disturbed."""
    taken = [0.0] * len(takes)
    for number in rng.sample(range(len(takes)), len(takes)):
        taken[number] = takes[number]()
        if watch.disturbed(reference) and patient:
            return None
    return taken
