"""One time for each config that was tried, of the rounds that it was measured in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.services.jobs.service import JobService
from app.store.records import PointRecord
from kernels.problem import Problem
from kernels.space import Config

# Whose median counts, the first that there is: a search's fastest owes something to luck.
_ROUNDS: Final = ("report", "final", "search")


@dataclass(frozen=True, slots=True)
class ConfigPoint:
    """A config on a problem: the median of its best round, of the newest job; None if it was rejected, for `reason`."""

    problem: Problem
    kernel: str
    config: Config
    round: str
    median_ms: float | None
    reason: str | None


def config_points(jobs: JobService, problem: Mapping[str, Any], **filters: Any) -> list[ConfigPoint]:
    """The configs of the trials that match, each once, in the order in which they were first tried."""
    return list(merged(jobs.points(problem, **filters)))


def merged(points: Iterable[PointRecord]) -> Iterable[ConfigPoint]:
    """One point for each problem, kernel and config; one that was rejected in its last job stays rejected."""
    held: dict[tuple[Problem, str, Config], PointRecord] = {}
    for point in points:
        key = (point.problem, point.kernel, point.config)
        before = held.get(key)
        if before is None or point.state == "rejected" or _rank(point) <= _rank(before):
            held[key] = point
    for point in held.values():
        time = None if point.state == "rejected" else point.median_ms
        yield ConfigPoint(point.problem, point.kernel, point.config, point.round, time, point.reason)


def _rank(point: PointRecord) -> int:
    """Of rounds the best is lowest; anything is better than a rejection."""
    return len(_ROUNDS) if point.state == "rejected" else _ROUNDS.index(point.round)
