"""How many large bodies land at once, so that others are heard while they do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from app.api.body import flow_control
from app.api.body.flow_control import LARGE, UploadSlots


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on a loop of its own."""

    @wraps(test)
    def run(**given: object) -> None:
        async def whole() -> None:
            await test(**given)

        asyncio.run(whole())

    return run


async def land(place: UploadSlots, nbytes: int, inside: list[int], end: asyncio.Event) -> None:
    async with place.slot(nbytes):
        inside.append(nbytes)
        await end.wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def left(place: UploadSlots) -> int:
    """How many could land at once now."""
    inside, end = list[int](), asyncio.Event()
    tasks = [asyncio.create_task(land(place, LARGE, inside, end)) for _ in range(flow_control.AT_ONCE + 3)]
    await settle()
    count = len(inside)
    end.set()
    await asyncio.gather(*tasks)
    return count


@looped
async def test_large_bodies_take_slots_and_small_ones_pass_by() -> None:
    place, inside, end = UploadSlots(), list[int](), asyncio.Event()
    tasks = [asyncio.create_task(land(place, LARGE, inside, end)) for _ in range(flow_control.AT_ONCE + 2)]
    tasks.append(asyncio.create_task(land(place, LARGE - 1, inside, end)))
    await settle()
    assert sorted(inside) == [LARGE - 1, *[LARGE] * flow_control.AT_ONCE]
    end.set()
    await asyncio.gather(*tasks)
    assert len(inside) == flow_control.AT_ONCE + 3
    assert await left(place) == flow_control.AT_ONCE


@looped
async def test_one_that_takes_long_goes_on_and_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "_LONG", 0.01)
    place, inside, end = UploadSlots(), list[int](), asyncio.Event()
    slow = [asyncio.create_task(land(place, LARGE, inside, end)) for _ in range(flow_control.AT_ONCE)]
    await asyncio.sleep(0.05)
    monkeypatch.setattr(flow_control, "_LONG", 10.0)
    assert await left(place) == flow_control.AT_ONCE
    end.set()
    await asyncio.gather(*slow)
    assert await left(place) == flow_control.AT_ONCE, "who had left does not leave again"


@looped
async def test_who_goes_away_while_waiting_or_landing_takes_nobodys_place() -> None:
    place, inside, end = UploadSlots(), list[int](), asyncio.Event()
    tasks = [asyncio.create_task(land(place, LARGE, inside, end)) for _ in range(flow_control.AT_ONCE + 4)]
    await settle()
    for task in (tasks[0], tasks[-1], tasks[-2]):
        task.cancel()
    await asyncio.gather(*tasks[:1], *tasks[-2:], return_exceptions=True)
    await settle()
    assert len(inside) == flow_control.AT_ONCE + 1
    end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await left(place) == flow_control.AT_ONCE
