"""Waiting for what becomes true in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float = 100.0) -> None:
    """Ask again and again until the answer is true; a failure once `seconds` have passed."""
    latest = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < latest, f"not within {seconds:g} s"
        time.sleep(0.02)
