"""Priority queues of devices' tune jobs: those that a client waits for first, background jobs last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _QueuedJob:
    job_id: str
    idle: bool


class JobQueue:
    """Jobs with followers come first, then the others, idle work last; in order of arrival within each.

    `followed` says whether a job has a follower; it is called when the next job is chosen.
    """

    def __init__(self, followed: Callable[[str], bool]) -> None:
        self._followed = followed
        self._queued: list[_QueuedJob] = []
        self._changed = threading.Condition()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether no job is given any more."""
        return self._closed

    def __len__(self) -> int:
        """Queued jobs, idle work left out."""
        return sum(not job.idle for job in self._queued)

    @property
    def waiting(self) -> set[str]:
        """The ids of queued jobs, idle work left out."""
        with self._changed:
            return {job.job_id for job in self._queued if not job.idle}

    def __contains__(self, job_id: str) -> bool:
        """Whether a job is queued."""
        with self._changed:
            return any(job.job_id == job_id for job in self._queued)

    def put(self, job_id: str, *, idle: bool = False) -> None:
        """Queue a job."""
        with self._changed:
            self._queued.append(_QueuedJob(job_id, idle))
            self._changed.notify()

    def drop(self, job_id: str) -> None:
        """Take a job out of the queue, if it is there."""
        with self._changed:
            self._queued = [job for job in self._queued if job.job_id != job_id]

    def take(self, timeout: float | None = None) -> str | None:
        """Wait for the next job; None if none came within `timeout` seconds, or the queue was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queued, timeout)
            if self._closed or not self._queued:
                return None
            chosen = min(self._queued, key=lambda job: (job.idle, not self._followed(job.job_id)))
            self._queued.remove(chosen)
            return chosen.job_id

    def close(self) -> None:
        """Wake the threads that wait; no job is given any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class JobQueues:
    """A queue a device; a job that several devices may take part in is in the queue of each."""

    def __init__(self, device_ids: Iterable[str], followed: Callable[[str], bool]) -> None:
        self._queues = {device_id: JobQueue(followed) for device_id in device_ids}

    def of(self, device_id: str) -> JobQueue:
        """The queue of one device."""
        return self._queues[device_id]

    def __contains__(self, job_id: str) -> bool:
        """Whether a job is in any queue."""
        return any(job_id in queue for queue in self._queues.values())

    def __len__(self) -> int:
        """Jobs that are queued anywhere, idle work left out."""
        return len(self.waiting)

    @property
    def waiting(self) -> set[str]:
        """The ids of jobs that are queued anywhere, idle work left out."""
        return set[str]().union(*(queue.waiting for queue in self._queues.values()))

    def put(self, job_id: str, device_ids: Iterable[str], *, idle: bool = False) -> bool:
        """Queue a job for devices, once each; if none of them is here, for the first that is. False: there is none."""
        queues = [self._queues[device_id] for device_id in dict.fromkeys(device_ids) if device_id in self._queues]
        queues = queues or list(self._queues.values())[:1]
        for queue in queues:
            if job_id not in queue:
                queue.put(job_id, idle=idle)
        return bool(queues)

    def drop(self, job_id: str) -> None:
        """Take a job out of every queue."""
        for queue in self._queues.values():
            queue.drop(job_id)

    def close(self) -> None:
        """Close every queue."""
        for queue in self._queues.values():
            queue.close()
