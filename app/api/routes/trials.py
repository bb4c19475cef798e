"""Stored trials: every config that was tried, with its timing or the reason why it was rejected; and what to try."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.formats import csv_table
from app.api.openapi.direct_route import DirectRouter
from app.api.paging import misses_page, trials_page
from app.api.params import read_query
from app.api.responses import reply
from app.api.routes.charts.tables import told
from app.api.schemas import MissesQuery, OneMissQuery, TrialsQuery
from app.api.state import service_of, threads_of
from app.api.streamed_text import streamed
from app.api.trials_schema import Misses, Trials

router = DirectRouter("trials")

_LINES: Final = "application/x-ndjson"
_REPLAY: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of trials, as CSV where that is accepted; with `format=replay` recordings, in lines.",
        "content": {_LINES: {"schema": {"type": "string"}}, csv_table.MEDIA: {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/trials",
    summary="List trials, oldest first",
    response_model=Trials,
    responses=_REPLAY
    | documented(
        errors.UnknownDevice,
        errors.UnknownJob,
        errors.NotAcceptable,
        errors.Invalid,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    query=TrialsQuery,
)
async def list_trials(request: Request) -> Response:
    """A page of trials. `next` is the page after it: give it as `cursor`.

    With `format=replay` everything that the filters name, as a recording that `tilewise replay` plays a tune on.
    """
    asked, service = read_query(TrialsQuery, request), service_of(request)
    if asked.job_id is not None:
        await threads_of(request).call(service.jobs.get, asked.job_id, principal_of(request))
    filters = {
        "device_model": None if asked.device is None else service.fleet.unit(asked.device).device.model,
        "problem": asked.members(),
        "kernel": asked.kernel,
        "state": asked.state,
        "job_id": asked.job_id,
        "round": asked.round,
    }
    if asked.format == "replay":
        return await streamed(service.jobs.recordings(**filters), threads_of(request), _LINES)
    return told(request, await threads_of(request).call(trials_page, service.jobs, filters, asked), "trials")


@router.get(
    "/misses",
    summary="Shapes asked for and not tuned",
    response_model=Misses,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.StoreFailed, errors.NoDevice),
    query=MissesQuery,
)
async def list_misses(request: Request) -> Response:
    """What was answered by less than an exact config, most often first, as of some seconds ago.

    TILEWISE_IDLE_TUNING=on tunes it by itself.
    """
    asked, service = read_query(MissesQuery, request), service_of(request)
    model = None if asked.device is None else service.fleet.unit(asked.device).device.model
    return reply(await threads_of(request).call(misses_page, service.misses, model, asked))


@router.delete(
    "/misses",
    summary="Dismiss a shape that was asked for and not tuned",
    status_code=204,
    responses=documented(
        errors.UnknownDevice,
        errors.UnknownMiss,
        errors.Invalid,
        errors.Unsupported,
        errors.NoDevice,
        errors.StoreFailed,
    ),
    query=OneMissQuery,
)
async def dismiss_miss(request: Request) -> Response:
    """Forget how often one problem was asked for on a device and its like: an idle device does not tune it.

    It is counted anew once it is asked for again.
    """
    asked, service = read_query(OneMissQuery, request), service_of(request)
    model = service.fleet.unit(asked.device).device.model
    await threads_of(request).call(service.misses.dismiss, model, asked.problem())
    return Response(status_code=204)
