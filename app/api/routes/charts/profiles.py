"""POST /profile and GET /profiles: what hardware counters, drivers and the model say of a problem's kernels."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.json_body import read_json
from app.api.errors import documented, timed_out
from app.api.negotiation import preference
from app.api.openapi.direct_route import DirectRouter
from app.api.openapi.parameters import body, header
from app.api.params import PageQuery, paged, read_query
from app.api.responses import Answer, Config, Job, Problem, reply
from app.api.routes.jobs import ended_within
from app.api.schemas import DeviceId, Name, ProblemFilter, ProblemQuery
from app.api.state import service_of, threads_of
from app.services.jobs.service import ENDED, JobService
from app.store.records import ProfileRecord

router = DirectRouter("trials")


class ProfileRequest(ProblemQuery):
    """Which problem's kernels to profile, and where."""

    device: DeviceId = None


class ProfilesQuery(ProblemFilter, PageQuery):
    """Which profiles, newest first."""

    device: Annotated[Name | None, Field(description="Only those made on this device's model.")] = None
    job_id: Annotated[Name | None, Field(description="Only this job's.")] = None


class ProfileFigure(Answer):
    """A figure of a kernel, where it comes from, and what stands beside it."""

    name: Annotated[str, Field(description="`stall_` and a cause: warps that wait for it, each time that one issues.")]
    unit: str
    value: Annotated[float | None, Field(description="Of one launch; null where no source has it.")]
    source: Annotated[
        Literal["ncu", "perf", "timer", "driver", "model", "none"],
        Field(
            description="Counters of Nsight Compute or of the kernel's perf events, a tune's timer, or none of these."
        ),
    ]
    reason: Annotated[str | None, Field(description="Why no counter says it; null where one does.")]
    predicted: Annotated[float | None, Field(description="The model's value, which knows no caches.")]
    article: Annotated[
        float | None, Field(description="Naive and tiled at 2048 x 2048 x 2048 on an A40, as the articles have it.")
    ]


class KernelProfile(Answer):
    """One kernel of a profile; `refusal` is why it has no figures."""

    role: Literal["naive", "tiled", "winner", "vendor"]
    kernel: str
    config: Config
    figures: list[ProfileFigure]
    refusal: str | None


class Profile(Answer):
    """What was found of a problem's kernels on a device."""

    id: Annotated[str, Field(description="Its job's.")]
    device: str
    device_model: str
    environment: str
    problem: Problem
    created_at: datetime
    kernels: list[KernelProfile]
    findings: Annotated[list[str], Field(description="What the figures say, a sentence each.")]

    @classmethod
    def of(cls, record: ProfileRecord) -> Profile:
        """Take the store's record."""
        names = ("id", "device", "device_model", "environment", "created_at")
        members = {name: getattr(record, name) for name in names}
        return cls.model_validate({**members, "problem": Problem.of(record.problem), **record.content})


class Profiles(Answer):
    """A page of profiles, newest first; `next` asks for the page after it."""

    profiles: list[Profile]
    next: str | None


MODELS: Final = (ProfileRequest,)
_PROBLEM: Final = {"m": 2048, "n": 2048, "k": 2048, "batch": 1, "dtype": "float32", "precision": "strict"}
_FIGURE: Final = {
    "name": "l1_hit_percent",
    "unit": "%",
    "value": 2.4,
    "source": "ncu",
    "reason": None,
    "predicted": None,
    "article": 2.43,
}
_KERNEL: Final = {
    "role": "tiled",
    "kernel": "tiled",
    "config": {"BM": 16, "BN": 16, "BK": 16},
    "figures": [_FIGURE],
    "refusal": None,
}
_PROFILE: Final = {
    "id": "4a1fd5a0c29b4e33a4d2a31f6f1b77c5",
    "device": "cuda:0",
    "device_model": "NVIDIA H200 sm_90 132 SMs 143 GB",
    "environment": "cuda 12.9, driver 575.57, NVRTC 12.9",
    "problem": _PROBLEM | {"trans_a": False, "trans_b": False},
    "created_at": "2026-01-31T12:00:09Z",
    "kernels": [_KERNEL],
    "findings": ["tiled is bound by arithmetic: 95.2 % of the SMs' peak, 94.1 % of memory's."],
}
EXAMPLES: Final[dict[str, Any]] = {
    "ProfileRequest": {"m": 2048, "n": 2048, "k": 2048},
    "ProfileFigure": _FIGURE,
    "KernelProfile": _KERNEL,
    "Profile": _PROFILE,
    "Profiles": {"profiles": [_PROFILE], "next": None},
}
_JOB: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": Job, "description": "The job, ended within the time that `Prefer: wait` gave it."},
    202: {"headers": {"Location": {"description": "The job's place.", "schema": {"type": "string"}}}},
}


@router.post(
    "/profile",
    summary="Profile a problem's kernels",
    status_code=202,
    response_model=Job,
    response_description="The job, which may be one that does the same already.",
    responses=_JOB
    | timed_out()
    | documented(
        errors.Malformed,
        errors.UnknownDevice,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.Unsupported,
        errors.TooLarge,
        errors.QueueFull,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    openapi_extra={
        "parameters": [header("Prefer", "`wait=N` waits up to N seconds, 60 at most, for the job's end.")],
        "requestBody": body(ProfileRequest),
    },
)
async def profile(request: Request) -> Response:
    """Have naive, tiled, what serves the problem now and the vendor's library profiled, in the device's turn of jobs.

    By Nsight Compute where it is installed and may read counters, by the kernel's perf events on a processor; what they
    do not say is the driver's or the model's word, and says so with the reason. `GET /profiles` has the outcome.
    """
    asked, prefer = await read_json(ProfileRequest, request), preference(request)
    service, threads = service_of(request), threads_of(request)
    job = await threads.call(service.profiles.submit, asked.problem(), asked.device, principal_of(request))
    headers = {"Location": f"/jobs/{job.id}"}
    if prefer.wait is not None:
        job = await ended_within(service, threads, job.id, prefer.wait)
        headers["Preference-Applied"] = f"wait={prefer.wait:g}"
    if job.state in ENDED:
        return reply(Job.of(job), 200, headers)
    return reply(Job.of(job), 202, headers | {"Retry-After": "1"})


@router.get(
    "/profiles",
    summary="Profiles, newest first",
    response_model=Profiles,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.StoreFailed, errors.NoDevice),
    query=ProfilesQuery,
)
async def list_profiles(request: Request) -> Response:
    """What was found of problems' kernels, the newest thousand: each figure with its source, and sentences on them.

    `next` is the page after it: give it as `cursor`.
    """
    asked = read_query(ProfilesQuery, request)
    service = service_of(request)
    model = None if asked.device is None else service.fleet.unit(asked.device).device.model
    return reply(await threads_of(request).call(profiles_page, service.jobs, asked, model))


def profiles_page(jobs: JobService, asked: ProfilesQuery, model: str | None) -> Profiles:
    """A page of stored profiles, of every device model or one."""
    (before,) = asked.place(int) or (None,)
    filters = {"device_model": model, "job_id": asked.job_id, "before": before, "limit": asked.limit + 1}
    page, following = paged(jobs.profiles(asked.members(), **filters), asked.limit, lambda one: (one.number,))
    return Profiles(profiles=[Profile.of(one) for one in page], next=following)
