"""GET /best-config: no device, no lock, no query; answers are cached rendered, by query string.

GET /bests is the same for all that is stored.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.paging import bests_page
from app.api.params import paged, read_query
from app.api.responses import Answer, Best, Bests, Config, Problem, reply
from app.api.routes.best.ladder_schema import Ladder, LadderQuery
from app.api.routes.charts.tables import TABLE, told
from app.api.schemas import BestQuery, BestsQuery, OneBestQuery
from app.api.state import service_of, state_of, threads_of
from app.devices.fleet import Unit
from app.services.best.history import best_history
from app.services.best.ladder import LadderService
from app.services.service import Service
from app.store import records
from kernels import problem as kernel_problem

router = DirectRouter("best-config")


class BestRevision(Answer):
    """What became the best of a problem (`promoted`), or stopped to be it (`deleted`), and when."""

    number: Annotated[int, Field(description="It rises with time.")]
    event: Literal["promoted", "deleted"]
    at: datetime
    device_model: str
    problem: Problem
    job_id: str | None
    kernel: str
    config: Config
    environment: str
    median_ms: float | None
    ci95_ms: tuple[float, float] | None
    samples: int | None
    default_ms: Annotated[float | None, Field(description="The untuned choice's, measured beside it.")]
    vendor_ms: Annotated[float | None, Field(description="The vendor's library's, measured beside it.")]

    @classmethod
    def of(cls, value: records.BestRevision) -> BestRevision:
        """Take the store's record."""
        names = ("number", "event", "at", "device_model", "job_id", "kernel", "environment", "median_ms", "samples")
        bounded = value.ci95_lo_ms is not None and value.ci95_hi_ms is not None
        return cls(
            problem=Problem.of(value.problem),
            config=dict(value.config),
            ci95_ms=(value.ci95_lo_ms or 0.0, value.ci95_hi_ms or 0.0) if bounded else None,
            default_ms=value.default_ms,
            vendor_ms=value.vendor_ms,
            **{name: getattr(value, name) for name in names},
        )


class BestHistory(Answer):
    """A page of the history of bests, newest first; `next` asks for the page after it."""

    history: list[BestRevision]
    next: str | None


_REVISION: Final[dict[str, Any]] = {
    "number": 7,
    "event": "promoted",
    "at": "2026-01-31T12:00:09Z",
    "device_model": "NVIDIA H200 | sm_90 | 132 SMs | 140 GiB",
    "problem": asdict(kernel_problem.Problem(512, 512, 512)),
    "job_id": "4a1fd5a0c29b4e33a4d2a31f6f1b77c5",
    "kernel": "tiled",
    "config": {"BM": 16, "BN": 16, "BK": 16},
    "environment": "cuda 12.9, driver 575.57, NVRTC 12.9",
    "median_ms": 0.0425,
    "ci95_ms": [0.0421, 0.043],
    "samples": 40,
    "default_ms": 0.051,
    "vendor_ms": 0.039,
}
EXAMPLES: Final[dict[str, Any]] = {
    "BestRevision": _REVISION,
    "BestHistory": {"history": [_REVISION], "next": None},
}


@router.get(
    "/best-config",
    summary="The best known config of a problem",
    response_model=Best,
    responses=documented(errors.UnknownDevice, errors.NotTuned, errors.Invalid, errors.Unsupported, errors.NoDevice),
    query=BestQuery,
)
async def best_config(request: Request) -> Response:
    """Which kernel and config to use, how fast it is, and how exact this answer is (`match`).

    `exact` was measured for this very problem, `stale` too but before the driver, the compiler or the kernel changed,
    `nearest` was measured for the nearest tuned shape, or elsewhere and imported, which `source` tells; `default` is
    the model's choice.
    """
    state = state_of(request.app)
    return state.rendered.answer(state.slot.get(), request.scope["query_string"], principal_of(request))


@router.get(
    "/best-config/ladder",
    summary="Which configs a program needs over m",
    response_model=Ladder,
    responses=documented(
        errors.UnknownDevice, errors.NotTuned, errors.Invalid, errors.Unsupported, errors.NoDevice, errors.StoreFailed
    ),
    query=LadderQuery,
)
async def best_config_ladder(request: Request) -> Response:
    """The fewest configs for all m of a range that lose no more than `loss` at any m that was tuned.

    A loss is measured, never guessed: the config's time over the exact winner's, of one job and one round at that m. A
    config reaches no further than it was measured; an m between two tuned ones belongs to the larger one's.
    """
    asked, service = read_query(LadderQuery, request), service_of(request)
    unit = service.fleet.unit(asked.device)
    ladder = LadderService(service.database, service.best).ladder
    found = await threads_of(request).call(ladder, asked.problem(), asked.m_from, asked.m_to, unit, asked.loss)
    return reply(Ladder.of(unit.device.id, found))


@router.get(
    "/bests",
    summary="Every stored best of this host's devices",
    response_model=Bests,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.NoDevice),
    query=BestsQuery,
)
async def list_bests(request: Request) -> Response:
    """What `GET /best-config` answers for every problem that has been tuned here, newest first.

    `next` is the page after it: give it as `cursor`.
    """
    asked, service = read_query(BestsQuery, request), service_of(request)
    unit = None if asked.device is None else service.fleet.unit(asked.device)
    return await threads_of(request).call(_bests, service, asked, unit)


@router.get(
    "/bests/history",
    summary="What was ever the best of problems",
    response_model=BestHistory,
    responses=TABLE
    | documented(errors.UnknownDevice, errors.NotAcceptable, errors.Invalid, errors.StoreFailed, errors.NoDevice),
    query=BestsQuery,
)
async def list_best_history(request: Request) -> Response:
    """Every promotion of a config to the best of a problem, and every deletion of one, newest first.

    Nothing of it is ever overwritten, nor forgotten with the trials. `next` is the page after it: give it as `cursor`.
    """
    asked, service = read_query(BestsQuery, request), service_of(request)
    model = None if asked.device is None else service.fleet.unit(asked.device).device.model
    return told(request, await threads_of(request).call(_history, service, asked, model), "history")


@router.delete(
    "/bests",
    summary="Forget the stored best of a problem",
    status_code=204,
    responses=documented(
        errors.UnknownDevice, errors.NotTuned, errors.Invalid, errors.Unsupported, errors.NoDevice, errors.StoreFailed
    ),
    query=OneBestQuery,
)
async def delete_best(request: Request) -> Response:
    """Forget what was found for one problem on a device and its like: it is answered as a problem never tuned.

    Its trials stay in the list. A tune finds a new best.
    """
    asked, service = read_query(OneBestQuery, request), service_of(request)
    unit = service.fleet.unit(asked.device)
    await threads_of(request).call(service.tuning.delete_best, unit, asked.problem())
    return Response(status_code=204)


def _history(service: Service, asked: BestsQuery, model: str | None) -> BestHistory:
    (before,) = asked.place(int) or (None,)
    found = best_history(service.database, model, asked.members(), before, asked.limit + 1)
    page, following = paged(found, asked.limit, lambda one: (one.number,))
    return BestHistory(history=[BestRevision.of(each) for each in page], next=following)


def _bests(service: Service, asked: BestsQuery, only: Unit | None) -> Response:
    units = service.fleet.units if only is None else (only,)
    return reply(bests_page(service.best, {unit.device.model: unit.device.id for unit in reversed(units)}, asked))
