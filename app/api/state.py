"""State: what the routes of one application share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.routing import BaseRoute

from app.api.admission.load_shedding import LoadShedder
from app.api.admission.request_guard import RequestGuard
from app.api.body.flow_control import AT_ONCE, SlowTransfers, UploadSlots
from app.api.event_broadcaster import EventBroadcaster
from app.api.inference.statistics import InferenceStatistics
from app.api.rendered_answers import RenderedAnswers
from app.api.telemetry.metrics import Metrics
from app.observability.tracing import TracerSlot
from app.server import TransferLimits
from app.server.thread_pool import RequestThreads
from app.services.access.caller import Access
from app.services.service import Service

# Of small products some wait here for one that the loop makes, which takes less time than to wake a thread for each; of
# more, several are made by one launch while they wait in the device's queue.
_MOST_SMALL: Final = 8


class ServiceSlot:
    """Where an application, which is made first, finds the service once it is open."""

    def __init__(self) -> None:
        self._service: Service | None = None

    def open(self, service: Service) -> None:
        """Put the service in."""
        self._service = service

    def access(self) -> Access | None:
        """Who may come in; None before there is a service, and so anything to come in to."""
        return None if self._service is None else self._service.access

    def get(self) -> Service:
        """The service; raises RuntimeError before there is one."""
        if self._service is None:
            raise RuntimeError("the application has not started")
        return self._service


class SmallProductQueue:
    """Products that wait to be made on the event loop, one at a time."""

    def __init__(self) -> None:
        self._turn, self._waiting = asyncio.Lock(), 0

    @property
    def is_full(self) -> bool:
        """Whether no more may wait here."""
        return self._waiting >= _MOST_SMALL

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the turn inside the block."""
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()


@dataclass(frozen=True, slots=True)
class State:
    """What the routes of one application share; `slot` holds the service from the application's start on."""

    slot: ServiceSlot
    metrics: Metrics
    load_shedder: LoadShedder
    guard: RequestGuard
    limits: TransferLimits
    slow_transfers: SlowTransfers
    operands: Path | None = None  # the folder of files that may be operands
    threads: RequestThreads = field(default_factory=RequestThreads)
    upload_slots: UploadSlots = field(default_factory=UploadSlots)
    threaded_slots: UploadSlots = field(default_factory=UploadSlots)
    small_products: SmallProductQueue = field(default_factory=SmallProductQueue)
    rendered: RenderedAnswers = field(default_factory=RenderedAnswers)
    tracing: TracerSlot = field(default_factory=TracerSlot)
    inference: InferenceStatistics = field(default_factory=InferenceStatistics)
    broadcaster: EventBroadcaster = field(default_factory=EventBroadcaster)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # that outlive their requests

    @classmethod
    def new(
        cls,
        limits: TransferLimits,
        routes: Callable[[], Iterable[BaseRoute]] = tuple,
        transfers: int | None = None,
        operands: Path | None = None,
    ) -> State:
        """The state of an application that has not started; `routes` gives its routes once it has.

        `transfers`: the threads that move large bodies, by default one for each CPU.
        """
        slot = ServiceSlot()
        metrics = Metrics(slot.get)
        guard = RequestGuard(slot.access, routes)
        slow = SlowTransfers()
        threads = RequestThreads(transfers)
        slots = UploadSlots(max(threads.transfers.size, AT_ONCE))
        shedder = LoadShedder(slot.get, metrics, slow.end)
        return cls(slot, metrics, shedder, guard, limits, slow, operands, threads, threaded_slots=slots)

    def install(self, app: Any) -> None:
        """Make this the state of an application of Starlette's."""
        app.state.tilewise = self


def state_of(app: Any) -> State:
    """The state of an application of Starlette's."""
    return cast("State", app.state.tilewise)


def service_of(request: Request) -> Service:
    """The service that the application opened when it started."""
    return state_of(request.app).slot.get()


def threads_of(request: Request) -> RequestThreads:
    """The application's threads."""
    return state_of(request.app).threads
