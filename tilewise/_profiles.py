"""ProfileMethods: what hardware counters, drivers and the model say of a problem's kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from tilewise._http1 import HttpRequest
from tilewise._jobs import JobMethods
from tilewise._requests import Page, filter_members
from tilewise._sansio import Flow, Operation
from tilewise.models import Job
from tilewise.shapes import Problem, ShapeLike, shape_of


@dataclass(frozen=True, slots=True)
class ProfileFigure:
    """A figure of one launch: `source` is ncu, perf, timer, driver, model or none; `reason` is why no counter has it.

    `predicted` is the model's value, `article` that of the articles' A40 at 2048 x 2048 x 2048.
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
    """A kernel of a profile, as naive, tiled, winner or vendor; `refusal` is why it has no figures."""

    role: str
    kernel: str
    config: Mapping[str, int]
    figures: tuple[ProfileFigure, ...] = ()
    refusal: str | None = None

    def figure(self, name: str) -> ProfileFigure | None:
        """Give the figure of a name; None if there is none."""
        return next((one for one in self.figures if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Profile:
    """What was found of a problem's kernels on a device; `id` is its job's, `findings` are sentences."""

    id: str
    device: str
    device_model: str
    environment: str
    problem: Problem
    created_at: datetime
    kernels: tuple[KernelProfile, ...]
    findings: tuple[str, ...]


class ProfileMethods(JobMethods):
    """Profiles. Every method raises ClientError if the service refuses."""

    @Operation
    def profile(self, problem: Problem | ShapeLike, *, device: str | None = None, wait: bool = False) -> Flow[Job]:
        """Have a problem's kernels profiled, or a shape's in float32; with `wait` until that has ended."""
        about = problem if isinstance(problem, Problem) else Problem(**asdict(shape_of(problem)))
        data = (memoryview(json.dumps({**asdict(about), "device": device}).encode()),)
        ask = HttpRequest("POST", "/profile", data, {"Content-Type": "application/json"}, again=True)
        job = self._as(Job, (yield from self.transport.exchange(ask)))
        return (yield from self._ended(job.id, None)) if wait and not job.ended else job

    @Operation
    def profiles(
        self,
        problem: Problem | ShapeLike | None = None,
        *,
        device: str | None = None,
        job_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Flow[Page[Profile]]:
        """List at most `limit` profiles, newest first. The page's `next` is the `cursor` of the page after it."""
        query = {**filter_members(problem, None), "device": device, "job_id": job_id, "cursor": cursor, "limit": limit}
        return (yield from self._page(Profile, "profiles", query))
