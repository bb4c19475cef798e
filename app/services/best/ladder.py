"""The ladder of a product over m: where the winner changes, in as few configs as a bound of the loss allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.devices.fleet import Unit
from app.errors import Invalid, NotTuned
from app.services.best.lookup import BestConfigs
from app.store.database import Database
from app.store.records import BestRecord, TrialRecord
from app.store.repository import TrialRepository
from kernels.problem import Problem
from kernels.space import Config

MOST_POINTS: Final = 256
_MOST_TRIALS: Final = 20_000  # of one job on one problem
UNMEASURED: Final = "it has not been tuned, so that the exact winner there is not known"

KernelConfig = tuple[str, Config]


@dataclass(frozen=True, slots=True)
class LadderPoint:
    """A tuned m: its exact winner, and how much longer each other config took beside it, as far as that was measured.

    A loss of 0.03 says three per cent longer: medians of one job and one round.
    """

    m: int
    winner: KernelConfig
    losses: Mapping[KernelConfig, float]

    def loss(self, config: KernelConfig) -> float | None:
        """The loss of a config here; None if it was not measured beside the winner."""
        return 0.0 if config == self.winner else self.losses.get(config)


@dataclass(frozen=True, slots=True)
class LadderRung:
    """One config, for every m from `m_from` to `m_to`; `tuned` are the losses where the exact winner is known."""

    m_from: int
    m_to: int
    config: KernelConfig
    tuned: tuple[tuple[int, float], ...]

    @property
    def worst(self) -> tuple[int, float]:
        """Where the loss is worst of what was measured, and how much."""
        return max(self.tuned, key=lambda each: each[1])

    @property
    def untuned(self) -> int:
        """For how many m nothing was measured."""
        return self.m_to - self.m_from + 1 - len(self.tuned)


def rungs(points: Sequence[LadderPoint], m_from: int, m_to: int, most_loss: float) -> list[LadderRung]:
    """The fewest rungs of which none loses more than `most_loss` at any tuned m.

    A config reaches as far as its loss was measured: what was not is never taken to be small. An m between two tuned
    ones belongs to the larger, whose config was chosen for at least as much work.
    """
    found: list[LadderRung] = []
    start = 0
    while start < len(points):
        candidates = dict.fromkeys(point.winner for point in points[start:])
        reached = [(_reach(points, start, each, most_loss), each) for each in candidates]
        end = max(reach for reach, _ in reached)
        config = min(
            (each for reach, each in reached if reach == end), key=lambda each: _worst(points[start:end], each)
        )
        tuned = tuple((point.m, point.loss(config) or 0.0) for point in points[start:end])
        begin = found[-1].m_to + 1 if found else m_from
        found.append(LadderRung(begin, points[end - 1].m if end < len(points) else m_to, config, tuned))
        start = end
    return found


def _reach(points: Sequence[LadderPoint], start: int, config: KernelConfig, most_loss: float) -> int:
    """The first point from `start` on where a config's loss is not known, or too much."""
    for number in range(start, len(points)):
        loss = points[number].loss(config)
        if loss is None or loss > most_loss:
            return number
    return len(points)


def _worst(points: Iterable[LadderPoint], config: KernelConfig) -> float:
    return max(point.loss(config) or 0.0 for point in points)


class LadderService:
    """Ladders of what is stored for a device's model. Blocks for queries, takes no device."""

    def __init__(self, database: Database, best: BestConfigs) -> None:
        self._database, self._best = database, best

    def ladder(self, problem: Problem, m_from: int, m_to: int, unit: Unit, most_loss: float) -> list[LadderRung]:
        """The ladder of a problem whose m may be any in a range.

        Raises NotTuned if none there is tuned, Invalid for an empty range or more tuned ones than a ladder is made of.
        """
        if m_from > m_to:
            raise Invalid(f"m_from is {m_from}, beyond m_to, which is {m_to}", member="m_from")
        device = unit.device
        records = [
            record
            for record in self._best.all()
            if record.device_model == device.model
            and m_from <= record.problem.m <= m_to
            and replace(record.problem, m=problem.m) == problem
            and self._is_exact(record, device.id)
        ]
        if not records:
            raise NotTuned(f"no m from {m_from} to {m_to} of {problem.family} has been tuned on {device.id}")
        if len(records) > MOST_POINTS:
            raise Invalid(f"{len(records)} sizes are tuned there, a ladder is made of {MOST_POINTS} at most")
        winners = {(record.trial.kernel, record.trial.config) for record in records}
        points = [self._point(record, winners) for record in sorted(records, key=lambda each: each.problem.m)]
        return rungs(points, m_from, m_to, most_loss)

    def _is_exact(self, record: BestRecord, device_id: str) -> bool:
        return self._best.answer(record.problem, device_id).match == "exact"

    def _point(self, record: BestRecord, winners: Iterable[KernelConfig]) -> LadderPoint:
        winner = record.trial
        trials = self._database.read(
            lambda session: TrialRepository(session).search(
                device_model=record.device_model,
                problem_key=record.problem.key,
                job_id=winner.job_id,
                state="measured",
                limit=_MOST_TRIALS,
            )
        )
        wanted = {*winners}
        losses: dict[KernelConfig, float] = {}
        for name in ("search", "final"):  # the finals' samples take the place of the search's
            round_ = [trial for trial in trials if trial.round == name and not trial.dropped]
            best = next((t.median_ms for t in round_ if (t.kernel, t.config) == (winner.kernel, winner.config)), None)
            losses |= _losses(round_, wanted, best)
        return LadderPoint(record.problem.m, (winner.kernel, winner.config), losses)


def _losses(trials: Iterable[TrialRecord], wanted: set[KernelConfig], best: float | None) -> dict[KernelConfig, float]:
    """How much longer each config took than the winner in one round; what was faster there by chance lost nothing."""
    if not best:
        return {}
    return {
        (trial.kernel, trial.config): max(0.0, trial.median_ms / best - 1)
        for trial in trials
        if (trial.kernel, trial.config) in wanted and trial.median_ms is not None
    }
