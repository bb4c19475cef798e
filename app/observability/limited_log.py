"""LimitedLog: log lines that strangers cause, so many a minute, and all of them counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

_LINES: Final = 10  # a minute
_MINUTE: Final = 60.0


class LimitedLog:
    """Warnings of one kind. `total` counts them all; the next line says how many were left out. For one thread."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self.total = 0
        self._logger, self._clock = logger, clock
        self._minute, self._lines, self._left_out = float("-inf"), 0, 0

    def warning(self, message: str, *arguments: object) -> None:
        """Log a line, unless there were too many in this minute."""
        self.total += 1
        now = self._clock()
        if now - self._minute >= _MINUTE:
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines > _LINES:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self._logger.warning(f"{message}; %d more like it before were not told", *arguments, left_out)  # noqa: G004
        else:
            self._logger.warning(message, *arguments)
