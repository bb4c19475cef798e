"""CallLimit: the time at which a call to a worker must end, which another thread may advance."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

GLANCE: Final = 0.25  # seconds between looks at what no message tells: a renewed deadline, a stop, a death


class CallLimit(NamedTuple):
    """Moments of the monotonic clock: from `ask` on the function ends of itself, at `kill` its child is killed."""

    ask: float = inf
    kill: float = inf


NEVER: Final = CallLimit()
Until: TypeAlias = Callable[[], CallLimit]  # read every quarter of a second; it may only move forward


def never() -> CallLimit:
    """A call that nothing stops."""
    return NEVER


class CallStopped(Exception):
    """The call was stopped, as its `until` says. Whatever it was about is not to blame."""


def wait(granted: Callable[[float | None], bool], until: Until) -> None:
    """Wait until `granted(seconds)` is true; raises Stopped if it is not when the call should end."""
    if until is never:
        granted(None)
        return
    while not granted(max(0.0, min(GLANCE, until().ask - monotonic()))):
        if until().ask <= monotonic():
            raise CallStopped
