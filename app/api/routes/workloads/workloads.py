"""Workloads: a file of a program's products is read, kept, tuned by time at stake, and reported on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryFile
from typing import Annotated, Any, BinaryIO, Final, Literal, cast

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.stream import unpacked_body
from app.api.errors import documented, timed_out
from app.api.openapi.direct_route import DirectRouter
from app.api.params import PageQuery, StrictModel, paged, read_query
from app.api.responses import reply
from app.api.routes.workloads.responses import EXAMPLES, WorkloadAnswer, WorkloadList, WorkloadSummary
from app.api.schemas import DeviceId, DtypeField, Precision
from app.api.state import service_of, threads_of
from app.services.service import Service
from app.services.workloads.service import StoredWorkload
from app.workloads.options import ReadOptions

__all__ = ["EXAMPLES", "router"]

router = DirectRouter("workloads")

_MOST_BYTES: Final = 2**33  # of a file, unpacked by Content-Encoding
_BINARY: Final = {"type": "string", "format": "binary"}
WorkloadId = Annotated[str, Path(description="The workload's id.")]
Seconds = Annotated[
    float | None,
    Field(gt=0, le=86400, description="Tune it for so many seconds, in one job, most where most time is at stake."),
]


class WorkloadQuery(StrictModel):
    """What the file is, and what it leaves open."""

    name: Annotated[str, Field(pattern=r"^[ -~]{0,200}$", description="What you call it.", examples=["decode"])] = ""
    source: Annotated[
        Literal["torch.profiler", "cublaslt", "tunableop", "aiter", "hipblaslt", "cutlass", "onnx", "shapes"] | None,
        Field(description="What the file is; by default that is seen from its beginning."),
    ] = None
    dtype: DtypeField = "float32"
    precision: Annotated[Precision, Field(description="Of float32 products of which the file does not tell it.")] = (
        "strict"
    )
    free: Annotated[int | None, Field(ge=1, le=2**31 - 1, description="Size of a model's dimensions with names.")] = (
        None
    )
    tune: Seconds = None
    device: DeviceId = None


class ReportQuery(StrictModel):
    """Where the workload is reported on."""

    device: DeviceId = None


class TuneQuery(ReportQuery):
    """How long, and where, a workload that is kept is tuned."""

    tune: Annotated[float, Field(gt=0, le=86400, description="Seconds of the job.", examples=[60])]


class WorkloadsQuery(PageQuery):
    """Which page of the workloads, newest first."""


_ERRORS: Final = (
    errors.UnknownDevice,
    errors.Invalid,
    errors.StoreFailed,
    errors.NoDevice,
)
_TUNING: Final = (errors.BudgetTooSmall, errors.Unsupported, errors.TooLarge, errors.QueueFull, errors.OverShare)
_LOCATION: Final = {"Location": {"description": "The workload's place.", "schema": {"type": "string"}}}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": WorkloadAnswer, "description": "The workload, which was kept already."},
    201: {"model": WorkloadAnswer, "description": "The workload, which is new.", "headers": _LOCATION},
}


@router.post(
    "/workloads",
    summary="Read the products of a program",
    status_code=201,
    response_model=WorkloadAnswer,
    responses=_ANSWERS
    | timed_out()
    | documented(
        errors.Malformed,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.InvalidWorkload,
        errors.QuotaExceeded,
        *_TUNING,
        *_ERRORS,
    ),
    query=WorkloadQuery,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": _BINARY},
                "text/plain": {"schema": {"type": "string"}, "example": "512x512x512\n4096x16x4096 bfloat16 nt * 32\n"},
            },
        }
    },
)
async def create_workload(request: Request) -> Response:
    """Count the products of a file, compressed by gzip or not, and keep them with their times and what ran them.

    A trace of torch.profiler (with record_shapes), a log of cublasLt (CUBLASLT_LOG_LEVEL=5), TunableOp's CSV, lists of
    AITER or hipBLASLt, CUTLASS's CSV, an ONNX model, or lines of shapes. With `tune` a job begins, which its own events
    tell of. The same file is kept once. Nothing is kept of a file that is refused.
    """
    asked, service = read_query(WorkloadQuery, request), service_of(request)
    threads, principal = threads_of(request), principal_of(request)
    options = ReadOptions(asked.dtype, asked.precision, asked.free)
    async with _received(request, service) as file:
        create = service.workloads.create
        kept, is_new = await threads.call(create, file, asked.name, asked.source, options, principal)
    if asked.tune is not None:
        _, kept = await threads.call(service.workloads.tune, kept, asked.tune, asked.device, principal)
    report = await threads.call(service.workloads.report, kept, asked.device)
    place = {"Location": f"/workloads/{kept.record.id}"} if is_new else {}
    return reply(WorkloadAnswer.of(kept, report), 201 if is_new else 200, place)


@router.post(
    "/workloads/{workload_id}/tune",
    summary="Tune a workload",
    status_code=202,
    response_model=WorkloadAnswer,
    responses=documented(errors.UnknownWorkload, *_TUNING, *_ERRORS),
    query=TuneQuery,
)
async def tune_workload(request: Request, workload_id: WorkloadId) -> Response:
    """Begin one job that spends its seconds by time at stake; `job` names it, and its own events tell of it.

    The products for which the seconds do not suffice, those with least at stake, are left as they are.
    """
    asked, service, principal = read_query(TuneQuery, request), service_of(request), principal_of(request)
    threads = threads_of(request)
    kept = await threads.call(service.workloads.get, workload_id, principal)
    _, kept = await threads.call(service.workloads.tune, kept, asked.tune, asked.device, principal)
    report = await threads.call(service.workloads.report, kept, asked.device)
    return reply(WorkloadAnswer.of(kept, report), 202, {"Location": f"/jobs/{kept.record.job_id}"})


@router.get(
    "/workloads",
    summary="List workloads, newest first",
    response_model=WorkloadList,
    responses=documented(errors.Invalid, errors.StoreFailed),
    query=WorkloadsQuery,
)
async def list_workloads(request: Request) -> Response:
    """A page of workloads. `next` is the page after it: give it as `cursor`."""
    asked, service = read_query(WorkloadsQuery, request), service_of(request)
    (before,) = asked.place(str) or (None,)
    found = await threads_of(request).call(service.workloads.list, principal_of(request), before, asked.limit + 1)
    page, following = paged(found, asked.limit, lambda one: (one.record.id,))
    entries = [WorkloadSummary(**WorkloadSummary.members(one)) for one in page]
    return reply(WorkloadList(workloads=entries, next=following))


@router.get(
    "/workloads/{workload_id}",
    summary="Report on a workload",
    response_model=WorkloadAnswer,
    responses=documented(errors.UnknownWorkload, *_ERRORS),
    query=ReportQuery,
)
async def get_workload(request: Request, workload_id: WorkloadId) -> Response:
    """What its products took before and take now, per shape and in all, as far as it has been measured."""
    asked, service = read_query(ReportQuery, request), service_of(request)
    kept, report = await threads_of(request).call(_reported, service, request, workload_id, asked.device)
    return reply(WorkloadAnswer.of(kept, report))


@router.delete(
    "/workloads/{workload_id}",
    summary="Forget a workload",
    status_code=204,
    responses=documented(errors.UnknownWorkload, errors.Invalid, errors.StoreFailed),
)
async def delete_workload(request: Request, workload_id: WorkloadId) -> Response:
    """Forget which products a program runs. What was measured for them stays, and a job that tunes them goes on."""
    read_query(ReportQuery, request)
    await threads_of(request).call(service_of(request).workloads.delete, workload_id, principal_of(request))
    return Response(status_code=204)


def _reported(service: Service, request: Request, workload_id: str, device: str | None) -> tuple[StoredWorkload, Any]:
    kept = service.workloads.get(workload_id, principal_of(request))
    return kept, service.workloads.report(kept, device)


@asynccontextmanager
async def _received(request: Request, service: Service) -> AsyncIterator[BinaryIO]:
    """The body in a file that is gone behind the block: of a gigabyte no more is in memory than a piece."""
    threads = threads_of(request)
    async with threads.entered(TemporaryFile(dir=service.data_dir)) as file:
        async for piece in unpacked_body(request, _MOST_BYTES).pieces():
            await threads.sized(len(piece), file.write, piece)
        yield cast("BinaryIO", file)
