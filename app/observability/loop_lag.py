"""Measures how late the event loop is: what waits for it waits as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_PAUSE: Final = 0.25  # seconds between two looks, which cost the loop 20 us a second


class LoopLag:
    """A timer of the running loop that tells by how many seconds it was called late."""

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure from now on; called on the loop."""
        loop = asyncio.get_running_loop()
        self._again(loop, loop.time() + _PAUSE)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._timer = loop.call_at(due, self._look, loop, due)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self._observe(max(0.0, now - due))
        self._again(loop, now + _PAUSE)
