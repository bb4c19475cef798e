"""Products on the event loop: in turn, no more in line than is worth it, and their children heard in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from app.api.products import replies_soon
from app.api.state import SmallProductQueue
from app.devices.process import Worker, WorkerLink


def hold(state: object) -> object:
    return state


def answer(state: object, _: WorkerLink, seconds: float) -> object:
    time.sleep(seconds)
    return state


@pytest.fixture(scope="module")
def child() -> Iterator[Worker]:
    child = Worker("the child", hold, ("state",))
    child.start()
    yield child
    child.close()


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "soon"), [(0.0, True), (0.5, False)])
def test_a_child_replies_soon_or_is_left_to_a_thread(child: Worker, seconds: float, soon: bool) -> None:
    begun = child.begin(answer, seconds)
    assert begun is not None
    assert asyncio.run(replies_soon(begun)) is soon
    assert begun.finish() == "state"


@pytest.mark.rotating
def test_who_is_cancelled_while_it_listens_leaves_nothing_watched(child: Worker) -> None:
    begun = child.begin(answer, 0.1)
    assert begun is not None

    async def listen() -> None:
        task = asyncio.create_task(replies_soon(begun))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not asyncio.get_running_loop().remove_reader(begun.fileno())

    asyncio.run(listen())
    assert begun.finish() == "state"


def test_those_in_line_have_their_turns_in_order_and_a_few_may_wait() -> None:
    async def visit() -> tuple[list[int], list[bool]]:
        line, seen, full = SmallProductQueue(), list[int](), list[bool]()

        async def one(number: int) -> None:
            async with line.turn():
                await asyncio.sleep(0)
                seen.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(9)]
        await asyncio.sleep(0)
        full.append(line.is_full)
        tasks[4].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        full.append(line.is_full)
        return seen, full

    assert asyncio.run(visit()) == ([0, 1, 2, 3, 5, 6, 7, 8], [True, False])
