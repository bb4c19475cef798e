"""Verifies and samples finalists in turn, within a time limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from app.errors import ChildLost, DeviceCordoned, DeviceError
from app.tuning.measure.racing import NARROW
from app.tuning.measure.statistics import autocorrelated_interval
from app.tuning.outcome import Conditions, Measured, Rejected, Timing
from app.tuning.runner import Contender, InterleavedSamples, Runner
from kernels.launch import Launch

FEWEST: Final = 5  # samples of a figure, unless time does not allow for as many
_RETRIES: Final = 2  # of a round that failed though every contender runs alone


@dataclass(frozen=True, slots=True, eq=False)
class Finalist:
    """A contender and the search's measurement of it."""

    measured: Measured
    contender: Contender

    @property
    def seconds(self) -> float:
        """The search's median, the forecast of a launch."""
        return self.measured.timing.median_ms / 1e3


@dataclass(slots=True)
class FinalistSampling:
    """Verifies and samples finalists for `limit` seconds of wall time, of which `spent` are over.

    The limit may be raised to `most`, since the duration of a sample with its checks is known only after the first.
    `wrong` are the entries that failed, each with its rejection; `cost` is the recent wall time of a sample.
    """

    runner: Runner
    generator: random.Random
    clock: Callable[[], float]
    limit: float
    most: float
    wrong: dict[Finalist, Rejected] = field(default_factory=dict)
    proved: set[Finalist] = field(default_factory=set)
    policy: str = ""
    conditions: Conditions | None = None
    retaken: int = 0
    spent: float = 0.0
    cost: float = 0.0
    proof: float = 0.0

    @property
    def left(self) -> float:
        """Seconds of the limit that are left."""
        return self.limit - self.spent

    @property
    def available(self) -> float:
        """Seconds that are left where the limit is raised to the most, once a proof and one more have had theirs."""
        return self.most - self.spent - 2 * self.proof

    def raise_limit(self, needed: float) -> None:
        """Raise the limit to the `needed` seconds, at most to `most`."""
        self.limit = max(self.limit, min(self.most, needed))

    def holds(self, entry: Finalist) -> bool:
        """Whether an entry stands hostile operands, which the vendor's library need not, and has not failed since."""
        if entry not in self.proved and entry not in self.wrong and isinstance(entry.contender, Launch):
            started = self.clock()
            rejected = self.runner.stress_verify(entry.contender)
            self.proof = self.clock() - started
            self.spent += self.proof
            if rejected is None:
                self.proved.add(entry)
            else:
                self.wrong[entry] = rejected
        return entry not in self.wrong

    def sample(self, entries: Sequence[Finalist], rounds: int) -> dict[Finalist, list[float]]:
        """Samples of the entries that stay; one that takes the device down is wrong, and its rounds are redone.

        Raises DeviceError if sampling fails with no entry to blame, ChildLost or DeviceCordoned at once.
        """
        left, failures = list(entries), 0
        while left:
            self.generator.shuffle(left)
            started = self.clock()
            try:
                sample_interleaved = self.runner.sample([entry.contender for entry in left], rounds)
            except (ChildLost, DeviceCordoned):
                raise  # no entry is to blame, nor can any be sampled
            except DeviceError:
                self.spent += self.clock() - started
                if not self._culprits(left):
                    failures += 1
                    if failures > _RETRIES:
                        raise
                left = [entry for entry in left if entry not in self.wrong]
                continue
            return self._counted(left, sample_interleaved, self.clock() - started)
        return {}

    def each(self, entries: Sequence[Finalist]) -> float:
        """Seconds that one round of entries is forecast to take."""
        return sum(max(entry.seconds, self.cost) for entry in entries)

    def fitting(self, entries: Sequence[Finalist]) -> list[Finalist]:
        """The entries, in their order, but for those with whom five rounds would take longer than there may be."""
        found: list[Finalist] = []
        for entry in entries:
            if FEWEST * self.each([*found, entry]) <= self.available:
                found.append(entry)
        return found

    def affordable(self, entries: Sequence[Finalist], limit: float, fewest: int, most: int) -> int:
        """How many rounds of entries fit a limit."""
        each = self.each(entries)
        return max(fewest, min(most, int(limit / each))) if each else fewest

    def timed(self, entry: Finalist, seconds: Sequence[float]) -> Measured:
        """The entry with these samples in the place of the search's."""
        middle = median(seconds)
        interval, limited = None, True
        if len(seconds) > 1:
            low, high = autocorrelated_interval(seconds)
            interval = 1e3 * max(0.0, low), 1e3 * high
            limited = len(seconds) < FEWEST or not (high - low) / 2 < NARROW * middle
        told = Timing(1e3 * middle, interval, len(seconds), limited, policy=self.policy)
        measured = entry.measured
        return Measured(measured.kernel, measured.config, told, measured.accuracy, measured.compilation, tuple(seconds))

    def _culprits(self, entries: Sequence[Finalist]) -> bool:
        """The entries that cannot be sampled even alone."""
        before, started = len(self.wrong), self.clock()
        for entry in entries:
            try:
                self.runner.sample([entry.contender], 1)
            except (ChildLost, DeviceCordoned):
                raise
            except DeviceError as error:
                self.wrong[entry] = Rejected(entry.measured.kernel, entry.measured.config, "measure", error.message)
        self.spent += self.clock() - started
        return len(self.wrong) > before

    def _counted(
        self, entries: Sequence[Finalist], sample_interleaved: InterleavedSamples, elapsed: float
    ) -> dict[Finalist, list[float]]:
        self.policy, self.conditions = sample_interleaved.policy, sample_interleaved.conditions or self.conditions
        self.retaken += sample_interleaved.retaken
        self.spent += max(elapsed, sum(map(sum, sample_interleaved.seconds)))
        self.cost = elapsed / max(1, sum(map(len, sample_interleaved.seconds)))
        return {entry: list(seconds) for entry, seconds in zip(entries, sample_interleaved.seconds, strict=True)}
