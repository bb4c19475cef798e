"""Load shedding: refuses products by their heads with 503 while the service is full, at almost no cost."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from time import perf_counter
from typing import Final

from starlette.responses import Response

from app.api.errors import refusal
from app.api.telemetry.metrics import Metrics
from app.errors import Busy, Closing, NoRoom
from app.server import PendingAdmissions
from app.services.service import Service

_LOG = logging.getLogger(__name__)
_SIZE: Final = re.compile(rb"(?:^|&)([mnk])=([0-9]{1,9})(?=&|$)")
_WIDEST: Final = 8  # bytes of an element at most
_REMEMBERED: Final = 64  # answers
_PRODUCTS: Final = (b"/matmul", b"/infer")  # how the paths end at which products are made


class LoadShedder:
    """What the wire asks before it makes a request: under a storm of requests a refusal must cost next to nothing.

    `make_room` has slow transfers give their memory back, and tells whether there are any.
    """

    def __init__(self, service: Callable[[], Service], metrics: Metrics, make_room: Callable[[], bool]) -> None:
        self._service, self._metrics, self._make_room = service, metrics, make_room
        self._answers: dict[tuple[object, ...], Response] = {}

    def refused(self, method: bytes, url: bytes, nbytes: int, ahead: PendingAdmissions) -> Response | None:
        """The refusal of a request with so many bytes of body, or None where it may come in, behind those ahead."""
        path, _, query = url.partition(b"?")
        if method != b"POST" or not path.endswith(_PRODUCTS):
            return None
        started, needed = perf_counter(), nbytes + _beside(query, nbytes)
        try:
            _expect_room(self._service(), needed, ahead)
        except Busy as error:
            if isinstance(error, NoRoom) and self._make_room():
                return None  # it waits for the room
            answer = self._answer(error)
            self._metrics.request("POST", "refused", error.status, perf_counter() - started)
            _LOG.debug("POST %s is refused: %s", url.decode("latin-1"), error.message)
            return answer
        ahead.products, ahead.nbytes = ahead.products + 1, ahead.nbytes + needed
        return None

    def _answer(self, error: Busy) -> Response:
        """The refusal as a response; in a storm most are alike."""
        key = (type(error), error.message, *error.facts.items())
        if key not in self._answers:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[key] = refusal(error)
        return self._answers[key]


def _expect_room(service: Service, nbytes: int, ahead: PendingAdmissions) -> None:
    """Raise QueueFull or OverShare where no product comes in, NoRoom where not even so many bytes do.

    Whether resident matrices could make room is left to those who know all of what is needed.
    """
    admission, slab = service.matmul.admission, service.fleet.slab
    if service.closing.is_set():
        raise Closing("the service is shutting down")
    admission.expect_place(ahead=ahead.products)
    if (
        0 < nbytes <= slab.nbytes
        and slab.lendable_bytes(nbytes) <= ahead.nbytes
        and not service.matrices.counts().count
    ):
        facts = {"limit": slab.nbytes, "size": nbytes}
        raise admission.with_retry_after(NoRoom(f"{nbytes} bytes do not fit beside what is lent", **facts))


def _beside(query: bytes, nbytes: int) -> int:
    """Bytes of C, which stands beside such a body, where the query has the sizes; 0 where it has not."""
    sizes = {name: int(digits) for name, digits in _SIZE.findall(query)}
    m, n, k = sizes.get(b"m", 0), sizes.get(b"n", 0), sizes.get(b"k", 0)
    return m * n * min(_WIDEST, nbytes // (k * (m + n))) if m and n and k else 0
