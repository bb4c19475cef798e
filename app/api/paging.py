"""Pages of jobs, trials, bests and misses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, cast

from app.api.params import paged
from app.api.responses import Best, Bests, Job, Jobs
from app.api.schemas import BestsQuery, JobsQuery, MissesQuery, TrialsQuery
from app.api.trials_schema import Miss, Misses, Trial, Trials
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.jobs import service
from app.services.principal import ANONYMOUS, Principal
from app.store.records import BestRecord, MissPlace

_STORED: Final = {"exact", "stale"}


def jobs_page(source: service.JobService, asked: JobsQuery, principal: Principal = ANONYMOUS) -> Jobs:
    """A principal's jobs, newest first; raises Invalid, UnknownJob."""
    (before,) = asked.place(str) or (None,)
    page, following = paged(
        source.list(asked.state, asked.kind, before, asked.limit + 1, principal), asked.limit, lambda job: (job.id,)
    )
    return Jobs(jobs=[Job.of(each) for each in page], next=following)


def trials_page(source: service.JobService, filters: Mapping[str, Any], asked: TrialsQuery) -> Trials:
    """Trials that `filters` name, oldest first; raises Invalid."""
    (after,) = asked.place(int) or (0,)
    page, following = paged(
        source.trials(**filters, after=after, limit=asked.limit + 1), asked.limit, lambda trial: (trial.id,)
    )
    return Trials(trials=[Trial.of(each, samples=asked.samples) for each in page], next=following)


def misses_page(source: MissCounter, model: str | None, asked: MissesQuery) -> Misses:
    """Shapes asked for and not tuned, those asked for most first; raises Invalid."""
    place = asked.place(int, datetime, str, str)
    after = None if place is None else cast("MissPlace", tuple(place))
    found = source.most_frequent(asked.limit + 1, model, asked.members(), after)
    page, following = paged(found, asked.limit, lambda one: (one.count, one.last_at, one.device_model, one.problem.key))
    return Misses(misses=[Miss.of(each) for each in page], next=following)


def bests_page(source: BestConfigs, devices: Mapping[str, str], asked: BestsQuery) -> Bests:
    """Stored bests of the models of `devices`, which gives a device's id for each, newest first; raises Invalid."""
    members, place = asked.members().items(), asked.place(datetime, str, str)
    answers = (
        (record, source.answer(record.problem, devices[record.device_model]))
        for record in sorted(source.all(), key=_place, reverse=True)
        if record.device_model in devices
        and (place is None or _place(record) < tuple(place))
        and all(getattr(record.problem, name) == value for name, value in members)
    )
    found = list(islice(((record, each) for record, each in answers if each.match in _STORED), asked.limit + 1))
    page, following = paged(found, asked.limit, lambda one: _place(one[0]))
    return Bests(bests=[Best.of(answer) for _, answer in page], next=following)


def _place(record: BestRecord) -> tuple[datetime, str, str]:
    """Where a best stands among others, the newest last."""
    return record.tuned_at, record.device_model, record.problem.key
