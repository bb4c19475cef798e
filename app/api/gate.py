"""The first look at a product: where the service is full it is refused by its head, before anything is spent on it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import refusal
from app.api.limits import declared
from app.api.metrics import Metrics
from app.api.service import Service
from app.errors import Busy, NoRoom

_PRODUCTS: Final = ("/matmul", "/infer")  # how the paths end at which products are made


class Gate:
    """ASGI middleware around all others: under a storm of requests a refusal must cost next to nothing."""

    def __init__(self, app: ASGIApp, service: Callable[[], Service], metrics: Metrics) -> None:
        self._app, self._service, self._metrics = app, service, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or just pass on."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(_PRODUCTS):
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        try:
            _expect_room(self._service(), declared(scope))
        except Busy as error:
            await refusal(error)(scope, receive, send)
            self._metrics.request("POST", "refused", error.status, perf_counter() - started)
        else:
            await self._app(scope, receive, send)


def _expect_room(service: Service, nbytes: int) -> None:
    """Raise QueueFull or OverShare where no product comes in, NoRoom where not even its body does.

    Whether resident matrices could make room is left to those who know all of what is needed.
    """
    admission, slab = service.matmul.admission, service.fleet.slab
    admission.expect_a_place()
    if nbytes <= slab.nbytes and slab.hole(nbytes) is None and not service.matrices.tally().count:
        facts = {"limit": slab.nbytes, "size": nbytes}
        raise admission.later(NoRoom(f"{nbytes} bytes do not fit beside what is lent", **facts))
