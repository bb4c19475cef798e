"""Waiting for what becomes true in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def _nothing() -> str:
    return ""


def until(
    holds: Callable[[], Answer],
    seconds: float = 100.0,
    *,
    each: float = 0.02,
    meanwhile: Callable[[], object] = _nothing,
) -> Answer:
    """Ask again and again, `each` seconds, until the answer is true, and give it.

    Once `seconds` have passed it is a failure, which says what `meanwhile` gives: it is asked each time, too, and may
    fail by itself where nothing is to be waited for any more.
    """
    latest = time.monotonic() + seconds
    while not (answer := holds()):
        said = meanwhile()
        assert time.monotonic() < latest, f"not within {seconds:g} s: {answer!r} {said}"
        time.sleep(each)
    return answer
