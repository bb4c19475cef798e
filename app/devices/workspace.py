"""Workspace: device memory reused by launches, beside their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.devices.backend import Buffer
from kernels.launch import COUNTERS

_COUNTERS_BYTES: Final = 4 * COUNTERS
_LEAST: Final = 2**22  # bytes: so that few launches want more
_KEPT: Final = 2**26  # bytes: more is given back after its launch, for the other child


class Workspace:
    """The workspace of a backend, allocated on first use; its counters are zero whenever no launch runs."""

    def __init__(self, allocate: Callable[[int], Buffer], fill: Callable[[Buffer, int], None]) -> None:
        self._allocate = allocate
        self._fill = fill
        self._held: Buffer | None = None

    def lend(self, nbytes: int) -> Buffer | None:
        """At least `nbytes`, None for 0; raises LaunchFailed if there is no memory."""
        if not nbytes:
            return None
        if self._held is None or self._held.nbytes < nbytes:
            self.forget()
            fresh = self._allocate(max(nbytes, _LEAST))
            self._fill(fresh.window(0, _COUNTERS_BYTES), 0)
            self._held = fresh
        return self._held

    def trim(self) -> None:
        """Free a workspace that is too large to keep."""
        if self._held is not None and self._held.nbytes > _KEPT:
            self.forget()

    def forget(self) -> None:
        """Give it all back."""
        self._held = None
