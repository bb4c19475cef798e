"""More seconds for a tune that has not ended."""

from __future__ import annotations

from dataclasses import replace

from app.errors import Invalid
from app.services.jobs.service import JobService
from app.services.principal import Principal
from app.services.tuning.request import TuneSpec
from app.services.tuning.service import TuningService
from app.store.records import JobRecord
from app.tuning.budget import SECONDS, Budget


def extend(tuning: TuningService, jobs: JobService, job_id: str, seconds: float, principal: Principal) -> JobRecord:
    """The job with so many seconds more, by the order that it was begun with.

    Raises UnknownJob, Invalid where it is no tune, has ended or has no limit of seconds, and as `submit`.
    """
    job = jobs.get(job_id, principal)
    if job.kind != "tune" or job.finished_at is not None or job.cancel_requested:
        raise Invalid(f"only a tune that has not ended can be extended: this {job.kind} is {job.state}")
    return tuning.submit(_extended(TuneSpec.from_json(job.request), seconds), principal)


def _extended(spec: TuneSpec, seconds: float) -> TuneSpec:
    """The order of a normalised spec, whose budget was a shape's, with more seconds."""
    each, shapes = spec.budget, len(spec.problems)
    default = None if each.gain_percent else SECONDS
    a_shape = each.seconds or default
    if a_shape is None:
        raise Invalid("the job has no limit of seconds: it ends once it expects no gain")
    whole = Budget(
        each.trials and each.trials * shapes, a_shape * shapes * len(spec.devices) + seconds, each.gain_percent
    )
    return replace(spec, devices=() if spec.spread else spec.devices, budget=whole)
