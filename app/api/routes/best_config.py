"""GET /best-config: no device, no lock, no query; answers are cached rendered, by query string.

GET /bests is the same for all that is stored.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.ladder_schema import Ladder, LadderQuery
from app.api.openapi.direct_route import DirectRouter
from app.api.paging import bests_page
from app.api.params import read_query
from app.api.responses import Best, Bests, reply
from app.api.schemas import BestQuery, BestsQuery, OneBestQuery
from app.api.state import service_of, state_of, threads_of
from app.devices.fleet import Unit
from app.services.best.ladder import LadderService
from app.services.service import Service

router = DirectRouter("best-config")


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
    `nearest` was measured for the nearest tuned shape, `default` is the model's choice.
    """
    state = state_of(request.app)
    return state.rendered.answer(state.slot.get(), request.scope["query_string"])


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


def _bests(service: Service, asked: BestsQuery, only: Unit | None) -> Response:
    units = service.fleet.units if only is None else (only,)
    return reply(bests_page(service.best, {unit.device.model: unit.device.id for unit in reversed(units)}, asked))
