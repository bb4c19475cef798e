"""The best configs of a job's shapes, with every error that its trials know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from app.cli.session import Session
from app.client import Accuracy, Baseline, Best, Job, Problem, Trial

_PAGE = 100


def with_errors(here: Session, job: Job, bests: Sequence[Best]) -> list[Best]:
    """Give each baseline the error that its own trial had."""
    errors = {_key(trial.problem, trial.kernel, trial.config): trial.error for trial in _trials(here, job.id)}
    return [replace(best, baselines=_baselines(best, errors)) for best in bests]


_Key = tuple[Problem, str, tuple[tuple[str, int], ...]]


def _key(problem: Problem, kernel: str, config: Mapping[str, int] | None) -> _Key:
    return problem, kernel, tuple(sorted((config or {}).items()))


def _trials(here: Session, job_id: str) -> Iterator[Trial]:
    after = 0
    while page := here.trials(after=after, limit=_PAGE, job_id=job_id):
        yield from page
        after = page[-1].id


def _baselines(best: Best, errors: Mapping[_Key, Accuracy | None]) -> Mapping[str, Baseline | None] | None:
    if best.baselines is None:
        return None
    return {
        name: entry and replace(entry, error=entry.error or errors.get(_key(best.problem, name, entry.config)))
        for name, entry in best.baselines.items()
    }
