"""Threads that are there from the start take calls in order, and nothing else than their number limits them."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from app.server.thread_pool import RequestThreads, ThreadPool
from tests.support.waiting import until

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


def test_calls_run_in_as_many_threads_as_there_are_and_the_rest_in_order() -> None:
    pool, seen, go = ThreadPool(3, "some"), list[int](), threading.Event()

    def call(number: int) -> int:
        if number < 3:
            go.wait(10)
        seen.append(number)
        return number

    async def main() -> list[int]:
        calls = [asyncio.ensure_future(pool.run(lambda number=number: call(number))) for number in range(20)]  # type: ignore[misc]
        await asyncio.sleep(0.05)
        assert not seen
        go.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == list(range(20))
    assert sorted(seen) == list(range(20))
    pool.stop()


def test_the_end_of_one_devices_product_waits_for_no_other_devices() -> None:
    threads, go = RequestThreads(), threading.Event()

    async def main() -> None:
        first = asyncio.ensure_future(threads.end(go.wait, 60))
        await asyncio.wait_for(threads.end(go.is_set), 60)
        assert not first.done()
        go.set()
        assert await first

    asyncio.run(main())
    threads.stop()


def test_what_a_call_raises_and_the_callers_context_pass_through() -> None:
    pool = ThreadPool(1, "one")

    def fail() -> None:
        raise LookupError(WHO.get())

    async def main() -> None:
        WHO.set("me")
        with pytest.raises(LookupError, match="me"):
            await pool.run(fail)

    asyncio.run(main())
    pool.stop()


def test_a_pool_takes_what_threads_it_gets_and_starts_none_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, start, left = ThreadPool(8, "few"), threading.Thread.start, [2]

    def limited(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> list[str]:
        return await asyncio.gather(*(pool.run(lambda: threading.current_thread().name) for _ in range(20)))

    monkeypatch.setattr(threading.Thread, "start", limited)
    pool.start()
    assert set(asyncio.run(main())) <= {"few 0", "few 1"}
    none = ThreadPool(8, "none")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        none.start()
    pool.stop()


def test_the_threads_of_a_pool_that_is_stopped_end_once_their_calls_have() -> None:
    pool, go = ThreadPool(4, "stopped"), threading.Event()

    async def main() -> None:
        call = asyncio.ensure_future(pool.run(lambda: go.wait(10)))
        await asyncio.sleep(0.05)
        pool.stop()
        go.set()
        assert await call

    asyncio.run(main())
    until(lambda: not any(thread.name.startswith("stopped") for thread in threading.enumerate()), 10, each=0.01)
