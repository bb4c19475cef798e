"""What happens to all jobs, read and rendered once for every stream that tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from app.server.thread_pool import RequestThreads
from app.services.jobs.feed import FeedEvent, JobFeed
from app.services.principal import Principal
from app.services.service import Service

_TOGETHER: Final = 0.1  # seconds in which what happens is told together: few enough for an eye, and one read for all
_CLOSING: Final = 0.5  # seconds between looks at whether the service shuts down
_HEALTH: Final = 5.0  # seconds between two tellings of health, by which a page sees that the service is there
_BEHIND: Final = 4096  # events that a follower may be behind before its stream is ended; it comes again for the rest


@dataclass(eq=False)
class Follower:
    """One stream: what it has not been sent yet."""

    principal: Principal
    pending: list[bytes] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    def put(self, pieces: Iterable[bytes]) -> None:
        """Have it sent; one that does not take what it is sent is ended."""
        self.pending.extend(pieces)
        self.ended = self.ended or len(self.pending) > _BEHIND
        self.woken.set()


class EventBroadcaster:
    """Reads what happens to jobs once, renders it once, and gives it to every stream.

    Its task lives while there is a follower, on the event loop.
    """

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self._task: asyncio.Task[None] | None = None
        self._following = asyncio.Event()

    async def add(self, follower: Follower, service: Service, threads: RequestThreads) -> None:
        """Give it what happens from the return on."""
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._following.clear()
            self._task = asyncio.create_task(self._run(service, threads))
        await self._following.wait()

    def remove(self, follower: Follower) -> None:
        """Give it nothing more; the last one ends the task."""
        self._followers.discard(follower)
        if not self._followers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, service: Service, threads: RequestThreads) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        feed, told = JobFeed(service.database, service.jobs), loop.time()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        try:
            unfollow = await threads.call(feed.follow, wake)
        finally:
            self._following.set()
        try:
            while not service.closing.is_set():
                if await _within(changed.wait, _CLOSING):
                    changed.clear()
                    self._give(await threads.call(feed.news))
                    await asyncio.sleep(_TOGETHER)
                if loop.time() - told >= _HEALTH:
                    self._tell([health_event(service)])
                    told = loop.time()
        finally:
            unfollow()
            self._end()

    def _give(self, events: Sequence[FeedEvent]) -> None:
        rendered = [(event, written(event)) for event in events]
        everything = [piece for _, piece in rendered]
        for follower in self._followers:
            is_anonymous = all(event.concerns(follower.principal) for event in events)
            follower.put(
                everything
                if is_anonymous
                else (piece for event, piece in rendered if event.concerns(follower.principal))
            )

    def _tell(self, pieces: Sequence[bytes]) -> None:
        for follower in self._followers:
            follower.put(pieces)

    def _end(self) -> None:
        for follower in self._followers:
            follower.ended = True
            follower.woken.set()


def health_event(service: Service) -> bytes:
    """Whether products are served now, as a stream has it."""
    reason = service.ready()
    data = {"status": "ready" if reason is None else "not ready", "reason": reason}
    return b"event: health\ndata: %s\n\n" % orjson.dumps(data)


async def _within(wait: Callable[[], Any], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await wait()
    except TimeoutError:
        return False
    return True


def written(event: FeedEvent) -> bytes:
    """An event as the stream has it."""
    data = orjson.dumps(event.data, default=str)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.name.encode(), data)
