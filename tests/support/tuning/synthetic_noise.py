"""Synthetic noise of known truth: families of series, and a machine that launches on a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt

import numpy as np
import numpy.typing as npt

from app.errors import ChildDied
from app.tuning.measure.drift import DriftDetector
from app.tuning.measure.racing import NoiseModel, race, sample_interleaved, timing
from app.tuning.outcome import Accuracy, Measured, Outcome, Rejected
from app.tuning.runner import Contender, InterleavedSamples
from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config

Array = npt.NDArray[np.float64]
Family = Callable[[np.random.Generator, int, int], Array]


def autoregressive(generator: np.random.Generator, rows: int, columns: int, phi: float) -> Array:
    """Stationary AR(1) of unit variance, [rows, columns]."""
    noise = generator.standard_normal((columns, rows))
    series = np.empty((columns, rows))
    series[0] = noise[0]
    for column in range(1, columns):
        series[column] = phi * series[column - 1] + sqrt(1 - phi**2) * noise[column]
    return series.T


def drifting(generator: np.random.Generator, rows: int, columns: int, slope: float, phi: float = 0.0) -> Array:
    """AR(1) about a straight line that rises or falls by `slope` deviations on both sides of zero."""
    signs = generator.choice([-1.0, 1.0], (rows, 1))
    return autoregressive(generator, rows, columns, phi) + slope * signs * np.linspace(-1, 1, columns)


def waving(generator: np.random.Generator, rows: int, columns: int) -> Array:
    """White noise about a wave of five periods, as a fan or a power limit regulates."""
    phases = 2 * np.pi * (np.linspace(0, 5, columns) + generator.random((rows, 1)))
    return np.asarray(generator.standard_normal((rows, columns)) + np.sin(phases), dtype=np.float64)


def bursting(generator: np.random.Generator, rows: int, columns: int) -> Array:
    """White noise in which 3 % of samples are 20 deviations late."""
    late = 20.0 * (generator.random((rows, columns)) < 0.03)
    return np.asarray(generator.standard_normal((rows, columns)) + late, dtype=np.float64)


# Deviations from the truth, [rows, columns], each row a series whose median is zero in expectation.
FAMILIES: dict[str, Family] = {
    "white": lambda generator, rows, columns: generator.standard_normal((rows, columns)),
    "skewed": lambda generator, rows, columns: np.expm1(0.5 * generator.standard_normal((rows, columns))),
    "heavy": lambda generator, rows, columns: generator.standard_t(3, (rows, columns)),
    "late": bursting,
    "AR 0.3": lambda generator, rows, columns: autoregressive(generator, rows, columns, 0.3),
    "AR 0.6": lambda generator, rows, columns: autoregressive(generator, rows, columns, 0.6),
    "AR 0.8": lambda generator, rows, columns: autoregressive(generator, rows, columns, 0.8),
    "drift": lambda generator, rows, columns: drifting(generator, rows, columns, 1.0),
    "drift, AR 0.5": lambda generator, rows, columns: drifting(generator, rows, columns, 1.0, 0.5),
    "wave": waving,
}


@dataclass
class Machine:
    """A device whose launches take their true seconds times exp(noise), on a clock that they move on.

    Noise of standard deviation `scale`: white (or Student's t with `tail` degrees of freedom), and of its variance a
    part `common` to all launches that is AR(1) from launch to launch. `drift` is the slope of a slow rise, in a second;
    `slow(now)` multiplies launches begun at a time, for steps and bursts.
    """

    generator: np.random.Generator
    scale: float = 0.01
    phi: float = 0.0
    common: float = 0.0
    tail: int | None = None
    drift: float = 0.0
    slow: Callable[[float], float] = field(default=lambda _now: 1.0)
    now: float = 0.0
    launches: int = 0
    _state: float = 0.0
    _white: list[float] = field(default_factory=list)

    def launch(self, seconds: float) -> float:
        """Launch what truly takes so many seconds."""
        own, push = self._draw(), self._draw()
        self._state = self.phi * self._state + sqrt(1 - self.phi**2) * push
        noise = self.scale * (sqrt(1 - self.common) * own + sqrt(self.common) * self._state)
        taken = seconds * exp(noise + self.drift * self.now) * self.slow(self.now)
        self.now += taken
        self.launches += 1
        return taken

    def kernel(self, seconds: float) -> Callable[[], float]:
        """A kernel that truly takes so many seconds."""
        return lambda: self.launch(seconds)

    def _draw(self) -> float:
        if not self._white:
            drawn = self.generator.standard_normal(4096)
            if self.tail:
                drawn = self.generator.standard_t(self.tail, 4096) * sqrt(1 - 2 / self.tail)
            self._white = drawn.tolist()
        return self._white.pop()


def slower(begin: float, end: float, factor: float = 1.1) -> Callable[[float], float]:
    """A slow-down between two times."""
    return lambda now: factor if begin <= now < end else 1.0


def per_second(percent: float, seconds: float) -> float:
    """The drift that rises by so many per cent in so many seconds."""
    return log(1 + percent / 100) / seconds


PROBLEM = Problem(64, 64, 64)
RIGHT = Accuracy(0.0, 0.0)


def launch(number: int, kernel: str = "register_tiled") -> Launch:
    """A launch that stands for one config."""
    return Launch(kernel, Config((("number", number),)), PROBLEM, Build(kernel, "", "matmul", ()), 1, (1, 1), 0)


def launches(measured: Measured) -> Launch:
    """The launch of a config measured."""
    return launch(measured.config["number"], measured.kernel)


@dataclass
class Synthetic:
    """A runner on a machine of known truth: `truth` is each contender's seconds, the vendor's under the problem.

    `wrong` fail their proof, `deadly` take the process down where they are sampled. `began` is when the
    last heat did.
    """

    machine: Machine
    truth: dict[Contender, float]
    wrong: set[Contender] = field(default_factory=set)
    deadly: set[Contender] = field(default_factory=set)
    reference: float = 1e-4
    pause: float = 0.0
    width: int = 1
    proofs: int = 0
    began: float = 0.0
    sampled: list[list[Contender]] = field(default_factory=list)
    watch: DriftDetector = field(default_factory=DriftDetector)
    noise: NoiseModel = field(default_factory=NoiseModel)

    def clock(self) -> float:
        """The machine's own."""
        return self.machine.now

    def prepare(self, launch: Launch) -> None:
        """Nothing is compiled."""

    def is_built(self, launch: Launch) -> bool:
        """Always."""
        del launch
        return True

    def await_build(self, launches: Sequence[Launch], most: float = inf) -> None:
        """Nothing is waited for."""

    def attempt(self, contender: Contender, best: float | None) -> Measured:
        """Race a contender."""
        self.machine.now += self.pause
        take = self.machine.kernel(self.truth[contender])
        raced = race(lambda count: [take() for _ in range(count)], best, inf, self.noise)
        timed = timing(raced.seconds, "events", dropped=raced.dropped)
        kernel, config = (
            (contender.kernel, contender.config) if isinstance(contender, Launch) else ("vendor", Config(()))
        )
        return Measured(kernel, config, timed, RIGHT, seconds=raced.seconds)

    def finals(self) -> None:
        pass

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """Whether it is wrong."""
        self.proofs += 1
        return Rejected(launch.kernel, launch.config, "verify", "wrong") if launch in self.wrong else None

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Run a heat."""
        if not self.deadly.isdisjoint(contenders):
            raise ChildDied("the child died")
        self.sampled.append(list(contenders))
        self.began = self.machine.now
        takes = [self.machine.kernel(self.truth[one]) for one in contenders]
        order = random.Random(int(self.machine.generator.integers(2**32)))  # noqa: S311  no secret
        seconds, retaken = sample_interleaved(takes, self.machine.kernel(self.reference), self.watch, rounds, order)
        return InterleavedSamples(seconds, "events", None, retaken)

    def search(self, contenders: Iterable[Contender]) -> list[Outcome]:
        """Attempt contenders one after the other, each against the best of our own so far."""
        found: list[Outcome] = []
        best: float | None = None
        for contender in contenders:
            measured = self.attempt(contender, best if isinstance(contender, Launch) else None)
            found.append(measured)
            if isinstance(contender, Launch):
                seconds = measured.timing.median_ms / 1e3
                best = seconds if best is None else min(best, seconds)
        return found
