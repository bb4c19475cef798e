"""Runs a strategy's ask in a thread of its own, which is abandoned when the search ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Final, Generic, TypeVar

from app.tuning.budget import Deadline
from app.tuning.runner import OutOfTime

T = TypeVar("T")

_GLANCE: Final = 0.05  # seconds between two looks at the time


class Once(Generic[T]):
    """A value that the first caller makes, for which the others wait; of those that share a `turn` one at a time."""

    def __init__(self, make: Callable[[], T], turn: threading.Lock) -> None:
        self._make, self._turn = make, turn
        self._lock = threading.Lock()
        self._made: list[T] = []

    @property
    def is_made(self) -> bool:
        """Whether nobody waits for it any more."""
        return bool(self._made)

    def __call__(self) -> T:
        """The value; raises what making it raises."""
        with self._lock:
            if not self._made:
                with self._turn:
                    self._made.append(self._make())
            return self._made[0]


def begin_in_thread(works: Sequence[Callable[[], object]], given: Deadline) -> None:
    """Start to do one after the other, until the search must end; what one raises is left to who needs its result."""

    def begin() -> None:
        for work in works:
            with suppress(BaseException):
                if given.searching() <= 0:
                    return
                work()

    threading.Thread(target=begin, name="listing spaces", daemon=True).start()


def ask_in_thread(work: Callable[[], T], given: Deadline) -> T:
    """The result of `work`; raises OutOfTime once the search must end, and exceptions of reading the budget.

    Listing a space of tens of thousands of configs and predicting each takes seconds, in which the tune could not be
    cancelled. Work that is abandoned ends by itself, and its result is discarded.
    """
    future: Future[T] = Future()
    threading.Thread(target=_settle, args=(future, work), name="ask a strategy", daemon=True).start()
    while not wait([future], timeout=_GLANCE).done:
        if given.searching() <= 0:
            raise OutOfTime
    return future.result()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised where the work is waited for
        future.set_exception(error)
