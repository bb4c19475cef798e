"""A thread pool whose owners take turns: what one has queued does not delay another's next task by more than one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class FairThreadPool:
    """`width` threads; tasks of one owner in their order, the owners in turn."""

    def __init__(self, width: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(width, thread_name_prefix=name)
        self._queues: dict[
            str, deque[tuple[Future[Any], Callable[[], Any]]]
        ] = {}  # in the order of their turns; none is empty
        self._lock = threading.Lock()

    def submit(self, owner: str, task: Callable[[], T]) -> Future[T]:
        """Queue a task; its future gives what it gave, or raises what it raised or CancelledError.

        Raises RuntimeError after the end.
        """
        future: Future[T] = Future()
        with self._lock:
            self._threads.submit(self._run_next)
            self._queues.setdefault(owner, deque()).append((future, task))
        return future

    def close(self) -> None:
        """Cancel what no thread has begun, and take no more; returns at once."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            given_up = [future for queue in self._queues.values() for future, _ in queue]
            self._queues.clear()
        for future in given_up:
            future.cancel()

    def join(self) -> None:
        """Wait for the threads to end."""
        self._threads.shutdown()

    def _run_next(self) -> None:
        """Run the next owner's first task, unless it was cancelled."""
        with self._lock:
            if not self._queues:
                return  # closed meanwhile
            owner = next(iter(self._queues))
            queue = self._queues.pop(owner)
            future, task = queue.popleft()
            if queue:
                self._queues[owner] = queue
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = task()
        except BaseException as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        else:
            future.set_result(result)
