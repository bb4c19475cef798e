"""The figures of a profiled kernel: each with its unit, where it comes from, and what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

NCU: Final = "ncu"  # Nsight Compute's counters
PERF: Final = "perf"  # the processor's counters
TIMER: Final = "timer"  # launches, as a tune times them
DRIVER: Final = "driver"  # what the driver says of the compiled kernel
MODEL: Final = "model"  # arithmetic over the config, and the measured time where a rate is meant
NONE: Final = "none"
SOURCES: Final = (NCU, PERF, TIMER, DRIVER, MODEL, NONE)
ROLES: Final = ("naive", "tiled", "winner", "vendor")
STALL: Final = "stall_"  # how the names of reasons for waiting begin
_STALLS: Final = 3  # reasons that are told, those for which most warps wait

UNITS: Final = {
    "time_ms": "ms",
    "sm_throughput_percent": "%",
    "memory_throughput_percent": "%",
    "l1_throughput_percent": "%",
    "l2_throughput_percent": "%",
    "dram_throughput_percent": "%",
    "l1_hit_percent": "%",
    "l2_hit_percent": "%",
    "last_level_hit_percent": "%",
    "dram_bytes_per_second": "byte/s",
    "dram_bytes": "byte",
    "loaded_bytes": "byte",
    "bank_conflicts": "",
    "occupancy_percent": "%",
    "registers": "a thread",
    "local_bytes": "byte",
    "shared_bytes": "byte",
    "instructions": "",
    "instructions_per_cycle": "",
    "busy_cores": "",
}
_EVERYWHERE: Final = ("time_ms", "sm_throughput_percent", "dram_throughput_percent", "l1_hit_percent")
_SIZES: Final = ("dram_bytes_per_second", "dram_bytes", "loaded_bytes", "shared_bytes")
_GPU: Final = ("memory_throughput_percent", "l1_throughput_percent", "l2_throughput_percent", "l2_hit_percent")
_CPU: Final = ("last_level_hit_percent", "instructions", "instructions_per_cycle", "busy_cores")
_WANTED: Final = {
    "cuda": {*_EVERYWHERE, *_SIZES, *_GPU, "bank_conflicts", "occupancy_percent", "registers", "local_bytes"},
    "opencl": {*_EVERYWHERE, *_SIZES, *_CPU},
}
# Naive and tiled at 2048 x 2048 x 2048 in float32 on an A40, as the article that the ladder begins with profiled them.
ARTICLE: Final[Mapping[str, Mapping[str, float]]] = {
    "naive": {
        "sm_throughput_percent": 43.83,
        "memory_throughput_percent": 28.33,
        "l1_throughput_percent": 28.40,
        "l2_throughput_percent": 5.06,
        "dram_throughput_percent": 3.63,
        "l1_hit_percent": 90.38,
        "l2_hit_percent": 82.83,
        "dram_bytes_per_second": 25.23e9,
    },
    "tiled": {
        "sm_throughput_percent": 95.16,
        "memory_throughput_percent": 95.16,
        "l1_throughput_percent": 95.71,
        "l2_throughput_percent": 19.22,
        "dram_throughput_percent": 37.85,
        "l1_hit_percent": 2.43,
        "l2_hit_percent": 48.61,
        "dram_bytes_per_second": 263.18e9,
    },
}


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What one source says, by name."""

    source: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProfileFigure:
    """A figure: `value` is None where no source has it; `reason` is why no counter does, None where one does.

    `predicted` is the model's value, `article` that of the article's A40.
    """

    name: str
    unit: str
    value: float | None
    source: str
    reason: str | None = None
    predicted: float | None = None
    article: float | None = None


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """A kernel's figures in a profile; `refusal` is why it has none."""

    role: str
    kernel: str
    config: Mapping[str, int]
    figures: tuple[ProfileFigure, ...] = ()
    refusal: str | None = None

    def figure(self, name: str) -> ProfileFigure | None:
        """The figure of a name that has a value."""
        return next((one for one in self.figures if one.name == name and one.value is not None), None)

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self) | {"config": dict(self.config)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> KernelProfile:
        """What was stored."""
        return cls(**{**found, "figures": tuple(ProfileFigure(**each) for each in found["figures"])})


def assembled(
    platform: str,
    role: str,
    sources: Sequence[SourceFigures],
    predicted: Mapping[str, float],
    reason: str | None,
) -> tuple[ProfileFigure, ...]:
    """The figures of a kernel: each from the first source that has it, with the reason where that is no counter."""
    article = ARTICLE.get(role, {})
    names = [name for name in UNITS if name in _WANTED[platform]]
    found = [_figure(name, UNITS[name], sources, predicted, article, reason) for name in names]
    return (*found, *_stalls(sources))


def _figure(
    name: str,
    unit: str,
    sources: Sequence[SourceFigures],
    predicted: Mapping[str, float],
    article: Mapping[str, float],
    reason: str | None,
) -> ProfileFigure:
    source = next((one for one in sources if name in one.values), None)
    beside = predicted.get(name), article.get(name)
    if source is None:
        return ProfileFigure(name, unit, None, NONE, reason or "the counters do not tell it here", *beside)
    is_counted = source.source in {NCU, PERF, TIMER}
    return ProfileFigure(name, unit, source.values[name], source.source, None if is_counted else reason, *beside)


def _stalls(sources: Sequence[SourceFigures]) -> list[ProfileFigure]:
    """What most warps wait for, of how many each time that one issues an instruction."""
    told = {name: value for one in sources for name, value in one.values.items() if name.startswith(STALL)}
    most = sorted(told, key=lambda name: -told[name])[:_STALLS]
    return [ProfileFigure(name, "warps an issue", told[name], NCU) for name in most]
