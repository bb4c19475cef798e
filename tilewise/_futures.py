"""Products made while their caller does something else: asked for now, fetched later."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise import _npy
from tilewise._http1 import HttpRequest
from tilewise._jobs import JobMethods, place
from tilewise._operands import Array, OperandPlan
from tilewise._sansio import AsyncRunner, Flow, Operation, SyncRunner
from tilewise.errors import TimedOut, error_of
from tilewise.models import Job


class Pending:
    """A product that was submitted; `id` is its job's, None if there was nothing to compute.

    `shape` and `dtype` are C's, None where an operand is a file of the service, which alone knows them.
    """

    def __init__(self, client: JobMethods, asked: OperandPlan | None, job: Job | None) -> None:
        self.id = None if job is None else job.id
        self.shape: tuple[int, ...] | None = None if asked is None else asked.shape
        self.dtype: np.dtype[Any] | None = None if asked is None else asked.dtype
        self._client, self._asked = client, asked

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.dtype} of {self.shape}>"

    @Operation
    def result(self, timeout: float | None = None) -> Flow[Array]:
        """Wait for C, at most so many seconds, and fetch it.

        Raises TimedOut, NoResult once the service has dropped it, Cancelled, and what the product failed with.
        """
        asked = self._asked
        if asked is None:
            return (yield from self._fetched(timeout, None))
        room = np.zeros(asked.made, asked.dtype)
        c = asked.answer(room if self.id is None else (yield from self._fetched(timeout, room)))
        return c if c.ndim else c[()]

    @Operation
    def done(self) -> Flow[bool]:
        """Tell whether the job has ended, well or not."""
        return self.id is None or (yield from JobMethods.job.within(self._client, self.id)).ended

    @Operation
    def cancel(self) -> Flow[None]:
        """Ask the service to give the product up."""
        if self.id is not None:
            yield from JobMethods.cancel.within(self._client, self.id)

    def _fetched(self, timeout: float | None, room: Array | None) -> Flow[Array]:
        identity = str(self.id)
        job = yield from JobMethods.wait.within(self._client, identity, timeout)
        if not job.ended:
            raise TimedOut(f"job {identity} is {job.state} after {timeout} s")
        if job.state != "succeeded":
            told = job.error or {"code": "cancelled", "error": f"job {identity} was {job.state}"}
            raise error_of(None, dict(told))
        ask = HttpRequest("GET", f"{place(identity)}/result", (), {"Accept": _npy.MEDIA}, again=True)
        return (yield from self._client.transport.read_answer(ask, _npy.read(room)))


class Submitted(Pending, SyncRunner):
    """A product that a Client has submitted."""


class AsyncSubmitted(Pending, AsyncRunner):
    """A product that an AsyncClient has submitted."""
