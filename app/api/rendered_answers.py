"""RenderedAnswers: the responses of GET /best-config, cached by query string."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from app.api.params import parse_query
from app.api.responses import Best, reply
from app.api.schemas import BestQuery
from app.services.best.answer import BestAnswer
from app.services.best.misses import Miss
from app.services.service import Service

_MOST: Final = 4096  # answers kept, a few megabytes


class RenderedAnswers:
    """Answers by raw query string, valid for one generation of bests. Used on the event loop only."""

    def __init__(self) -> None:
        self._generation = -1
        self._answers: dict[bytes, tuple[Response, Miss | None]] = {}

    def answer(self, service: Service, query: bytes) -> Response:
        """The answer to a query string; raises Invalid, UnknownDevice, NoDevice, Unsupported, NotTuned."""
        generation = service.best.generation
        if generation != self._generation:
            self._answers.clear()
            self._generation = generation
        known = self._answers.get(query)
        if known is None:
            answer = _answer(service, query)
            if len(self._answers) >= _MOST:
                self._answers.pop(next(iter(self._answers)))
            self._answers[query] = reply(Best.of(answer)), service.misses.noted(answer)
            return self._answers[query][0]
        response, miss = known
        if miss is not None:
            service.misses.note(miss)
        return response


def _answer(service: Service, query: bytes) -> BestAnswer:
    asked = parse_query(BestQuery, query)
    return service.best.answer(asked.problem(), asked.device, exact=asked.match == "exact")
