"""Recordings of spaces, and Replay: a runner that answers from one, so that tuning is tested with no device.

A recording is text, one JSON value a line (gzip where the name ends in .gz). An object begins a recording:
{"format", "device", "kernel", "digest", "problem", "policy", "parameters"}; every array after it is a trial:
[values of the parameters, samples in nanoseconds], or [values, stage, reason] of one that was rejected.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from app.errors import Malformed
from app.tuning.measure.racing import NoiseModel, race, timing
from app.tuning.outcome import Accuracy, Measured, Outcome, Rejected
from app.tuning.runner import Contender, InterleavedSamples
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.kernel import Kernel
from kernels.launch import Launch, Plan
from kernels.problem import Problem
from kernels.space import Config, Items, Rule, Space

FORMAT: Final = "tilewise-replay-1"
_UNRECORDED: Final = "was not recorded"
_NANO: Final = 1e-9
_RIGHT: Final = Accuracy(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Recording:
    """The seconds or the failure of every config of a space, or of a part of it, on one device and problem."""

    device: Device
    kernel: str
    digest: str
    problem: Problem
    policy: str
    outcomes: Mapping[Config, tuple[float, ...] | Rejected] = field(repr=False)

    def seconds(self, config: Config) -> float | None:
        """The mean of a config's samples, or None if it failed."""
        found = self.outcomes[config]
        return None if isinstance(found, Rejected) else fmean(found)

    @property
    def optimum(self) -> float:
        """The lowest mean of all configs, in seconds; raises ValueError if every config failed."""
        means = [seconds for config in self.outcomes if (seconds := self.seconds(config)) is not None]
        return min(means)

    def space(self) -> Kernel:
        """The recorded kernel with the recorded space; an unknown kernel has a placeholder for its plan."""
        names = list(next(iter(self.outcomes)))
        values = {name: tuple(sorted({config[name] for config in self.outcomes})) for name in names}
        space = Space(values, *_recorded(names, self.outcomes))
        known = CATALOGUE.get(self.kernel)
        if known is not None and list(known.space.parameters) == names:
            return replace(known, space=space, default=self._default)
        platforms, first = (self.device.platform,), next(iter(self.outcomes))
        return Kernel(
            self.kernel,
            "A recorded kernel.",
            "naive/kernel.cu",
            space,
            dtypes=(self.problem.dtype,),
            precisions=(self.problem.precision,),
            platforms=platforms,
            plan=lambda _config, _problem: Plan(1, (1, 1)),
            default=lambda _problem, _device: first,
        )

    def _default(self, problem: Problem, device: Device) -> Config:
        chosen = CATALOGUE[self.kernel].default(problem, device)
        return chosen if chosen in self.outcomes else next(iter(self.outcomes))


def _recorded(names: Sequence[str], configs: Iterable[Config]) -> tuple[dict[str, Rule], dict[str, tuple[str, ...]]]:
    """Rules that refuse what no config begins with, from all parameters on, and what each reads: few are ever built."""
    rules, reads, known = dict[str, Rule](), dict[str, tuple[str, ...]](), [config.items_ for config in configs]
    for count in range(len(names), 0, -1):
        reason = _UNRECORDED if count == len(names) else f"{_UNRECORDED} with such {', '.join(names[:count])}"
        rules[reason] = _begins({items[:count] for items in known}, count)
        reads[reason] = tuple(names[:count])
    return rules, reads


def _begins(begun: AbstractSet[Items], count: int) -> Rule:
    return lambda config, _problem, _device: config.items_[:count] in begun


class Replay:
    """A runner over a recording: every sample is drawn from those of its config, with replacement.

    `evaluations` counts attempts, `spent` adds up the seconds of all samples. The vendor's library is not recorded.
    """

    def __init__(self, recording: Recording, seed: int, width: int = 8) -> None:
        self.width = width
        self.evaluations, self.spent = 0, 0.0
        self._noise = NoiseModel()
        self._recording, self._random = recording, random.Random(seed)  # noqa: S311  a replay is no secret

    def prepare(self, launch: Launch) -> None:
        """Do nothing: recorded configs need no compilation."""

    def is_built(self, launch: Launch) -> bool:
        """Always."""
        del launch
        return True

    def await_build(self, launches: Sequence[Launch], most: float = inf) -> None:
        """Do nothing: nothing is waited for."""

    def attempt(self, contender: Contender, best: float | None) -> Outcome:
        """The recorded failure, or a race on recorded samples."""
        if isinstance(contender, Problem):
            return Rejected("vendor", Config(()), "space", "a recording has no vendor's library")
        self.evaluations += 1
        found = self._recording.outcomes[contender.config]
        if isinstance(found, Rejected):
            return found
        raced = race(lambda count: self._draw(found, count), best, float("inf"), self._noise)
        timed = timing(raced.seconds, self._recording.policy, dropped=raced.dropped)
        return Measured(contender.kernel, contender.config, timed, _RIGHT, seconds=raced.seconds)

    def finals(self) -> None:
        """Do nothing."""

    def stress_verify(self, launch: Launch) -> Rejected | None:
        """A recorded time was of a right answer."""
        del launch
        return None

    def sample(self, contenders: Sequence[Contender], rounds: int) -> InterleavedSamples:
        """Samples of each contender, one a round."""
        drawn = []
        for contender in contenders:
            found = self._recording.outcomes[contender.config] if isinstance(contender, Launch) else ()
            drawn.append(tuple(self._draw(found, rounds)) if isinstance(found, tuple) and found else ())
        return InterleavedSamples(tuple(drawn), self._recording.policy)

    def _draw(self, samples: Sequence[float], count: int) -> list[float]:
        drawn = self._random.choices(samples, k=count)
        self.spent += sum(drawn)
        return drawn


def lines(recordings: Iterable[Recording]) -> Iterator[str]:
    """The text of recordings, line by line."""
    for recording in recordings:
        yield json.dumps(_header(recording), separators=(",", ":")) + "\n"
        for config, found in recording.outcomes.items():
            values = list(config.values())
            if isinstance(found, Rejected):
                trial: list[Any] = [values, found.stage, found.reason]
            else:
                trial = [values, [round(seconds / _NANO) for seconds in found]]
            yield json.dumps(trial, separators=(",", ":")) + "\n"


def read(text: Iterable[str]) -> list[Recording]:
    """Parse the text of recordings; raises Malformed if it is not one."""
    found: list[Recording] = []
    outcomes: dict[Config, tuple[float, ...] | Rejected] = {}
    parameters: list[str] = []
    for number, line in enumerate(text, 1):
        try:
            value = json.loads(line)
            if isinstance(value, dict):
                outcomes, parameters = {}, list(value["parameters"])
                found.append(_recording(value, outcomes))
            else:
                config = Config(tuple(zip(parameters, value[0], strict=True)))
                outcomes[config] = _outcome(found[-1].kernel, config, value)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise Malformed(f"line {number} is no part of a recording: {error!r}") from error
    return found


def load(path: Path) -> list[Recording]:
    """The recordings of a file; raises Malformed, and OSError if it cannot be read."""
    content = path.read_bytes()
    return read((gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines())


def dump(recordings: Iterable[Recording], path: Path) -> None:
    """Write recordings to a file, equal bytes for equal recordings."""
    content = "".join(lines(recordings)).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _header(recording: Recording) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "device": asdict(recording.device),
        "kernel": recording.kernel,
        "digest": recording.digest,
        "problem": asdict(recording.problem),
        "policy": recording.policy,
        "parameters": list(next(iter(recording.outcomes), ())),
    }


def _recording(header: Mapping[str, Any], outcomes: dict[Config, tuple[float, ...] | Rejected]) -> Recording:
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r}, not {FORMAT}")
    limits = Limits(**header["device"]["limits"])
    device = Device(**{**header["device"], "limits": limits})
    kernel, digest, policy = (str(header[name]) for name in ("kernel", "digest", "policy"))
    return Recording(device, kernel, digest, Problem(**header["problem"]), policy, outcomes)


def _outcome(kernel: str, config: Config, value: list[Any]) -> tuple[float, ...] | Rejected:
    if len(value) == 3:  # noqa: PLR2004  values, stage, reason
        return Rejected(kernel, config, str(value[1]), str(value[2]))
    return tuple(sample * _NANO for sample in value[1])
