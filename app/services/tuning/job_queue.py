"""Priority queue of a device's tune jobs: those that a client waits for first, background jobs last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _QueuedJob:
    job_id: str
    idle: bool


class JobQueue:
    """Gives jobs whose end somebody waits for first, then the others, idle work last; in order of arrival within each.

    `followed` says whether somebody waits for a job; it is asked when the next job is chosen.
    """

    def __init__(self, followed: Callable[[str], bool]) -> None:
        self._followed = followed
        self._places: list[_QueuedJob] = []
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        """How many wait, idle work left out."""
        return sum(not place.idle for place in self._places)

    def __contains__(self, job_id: str) -> bool:
        """Whether a job waits here."""
        with self._changed:
            return any(place.job_id == job_id for place in self._places)

    def put(self, job_id: str, *, idle: bool = False) -> None:
        """Join the line."""
        with self._changed:
            self._places.append(_QueuedJob(job_id, idle))
            self._changed.notify()

    def take(self, timeout: float | None = None) -> str | None:
        """Wait for the next job; None where none came within `timeout` seconds, or the line was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._places, timeout)
            if self._closed or not self._places:
                return None
            chosen = min(self._places, key=lambda place: (place.idle, not self._followed(place.job_id)))
            self._places.remove(chosen)
            return chosen.job_id

    def close(self) -> None:
        """Let whoever takes go; what still waits is not given any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
