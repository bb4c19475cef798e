"""GET /best-config: the hot path. No device, no lock, no query; what was asked before is there already rendered."""

from __future__ import annotations

from typing import Final, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.answers import Best, reply
from app.api.errors import documented
from app.api.openapi import DirectRoute, parameters
from app.api.query import parse_query
from app.api.schemas import BestQuery
from app.api.service import Service, service_of

router = APIRouter(route_class=DirectRoute, tags=["tuning"])

_MOST: Final = 4096  # answers kept, a few megabytes


class Rendered:
    """Answers by raw query string, valid for one generation of bests. Used on the event loop only."""

    def __init__(self) -> None:
        self._generation = -1
        self._answers: dict[bytes, Response] = {}

    def answer(self, service: Service, query: bytes) -> Response:
        """The answer to a query string; raises Invalid, UnknownDevice, NoDevice, Unsupported, NotTuned."""
        generation = service.best.generation
        if generation != self._generation:
            self._answers.clear()
            self._generation = generation
        answer = self._answers.get(query)
        if answer is None:
            answer = _answer(service, query)
            if len(self._answers) >= _MOST:
                self._answers.pop(next(iter(self._answers)))
            self._answers[query] = answer
        return answer


@router.get(
    "/best-config",
    summary="The best known config of a problem",
    response_model=Best,
    responses=documented(errors.UnknownDevice, errors.NotTuned, errors.Invalid, errors.Unsupported, errors.NoDevice),
    openapi_extra={"parameters": parameters(BestQuery)},
)
async def best_config(request: Request) -> Response:
    """Which kernel and config to use, how fast it is, and how exact this answer is (`match`).

    `exact` was measured for this very problem, `stale` too but before the driver, the compiler or the kernel changed,
    `nearest` was measured for the nearest tuned shape, `default` is the model's choice.
    """
    rendered = cast("Rendered", request.app.state.rendered)
    return rendered.answer(service_of(request), request.scope["query_string"])


def _answer(service: Service, query: bytes) -> Response:
    asked = parse_query(BestQuery, query)
    answer = service.best.answer(asked.problem(), asked.device, exact=asked.match == "exact")
    return reply(Best.of(answer))
