"""RenderedAnswers: the responses of GET /best-config, cached by query string."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from app.api.params import parse_query
from app.api.responses import Best, reply
from app.api.schemas import BestQuery
from app.services.best.answer import BestAnswer
from app.services.best.misses import Miss
from app.services.principal import Principal
from app.services.service import Service

_MOST: Final = 4096  # answers kept, a few megabytes


class RenderedAnswers:
    """Answers by raw query string, valid for one generation of bests. Used on the event loop only."""

    def __init__(self) -> None:
        self._generation = (-1, -1)
        self._answers: dict[tuple[str, bytes], tuple[Response, Miss | None]] = {}

    def answer(self, service: Service, asked: bytes, principal: Principal) -> Response:
        """The answer to a query string, for which what the principal imported counts.

        Raises Invalid, UnknownDevice, NoDevice, Unsupported, NotTuned.
        """
        generation = service.best.generation, service.imports.generation
        if generation != self._generation:
            self._answers.clear()
            self._generation = generation
        query = principal.name if service.imports.concerns(principal) else "", asked
        known = self._answers.get(query)
        if known is None:
            answer = _answer(service, asked, principal)
            if len(self._answers) >= _MOST:
                self._answers.pop(next(iter(self._answers)))
            self._answers[query] = reply(Best.of(answer)), service.misses.noted(answer)
            return self._answers[query][0]
        response, miss = known
        if miss is not None:
            service.misses.note(miss)
        return response


def _answer(service: Service, query: bytes, principal: Principal) -> BestAnswer:
    asked = parse_query(BestQuery, query)
    found = service.best.answer(asked.problem(), asked.device, exact=asked.match == "exact")
    return service.imports.answer(found, principal)
