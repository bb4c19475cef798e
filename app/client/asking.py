"""Asking: what a client reads of a service: bests, wants, jobs, trials, devices, kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from app.client.answers import Best, Device, Job, Problem, Trial, Want
from app.client.errors import UnreadableAnswer
from app.client.flow import Flow, Operation
from app.client.http import Ask, Reply, target
from app.client.ladder import Kernel
from app.client.reading import read
from app.client.transport import Transport

T = TypeVar("T")


class Asking:
    """Questions that change nothing. Every method raises ClientError where the service refuses."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @Operation
    def best_config(
        self,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        exact: bool = False,
    ) -> Flow[Best]:
        """Give the best known config; with `exact`, ClientError of code not_tuned where the problem was never tuned."""
        query = {
            "m": m,
            "n": n,
            "k": k,
            "batch": batch,
            "dtype": dtype,
            "precision": precision,
            "trans_a": trans_a,
            "trans_b": trans_b,
            "device": device,
            "match": "exact" if exact else None,
        }
        return self._as(Best, (yield from self._get("/best-config", query)))

    @Operation
    def bests(self, *, device: str | None = None, dtype: str | None = None) -> Flow[list[Best]]:
        """List what is stored for the problems that were tuned on the service's devices, newest first."""
        return [
            read(Best, entry)
            for entry in (yield from self._list("/bests", "bests", {"device": device, "dtype": dtype}))
        ]

    @Operation
    def wants(self, *, device: str | None = None, limit: int = 100) -> Flow[list[Want]]:
        """List the shapes that were asked for most and are not tuned."""
        return [
            read(Want, entry)
            for entry in (yield from self._list("/wants", "wants", {"device": device, "limit": limit}))
        ]

    @Operation
    def jobs(
        self, *, state: str | None = None, kind: str | None = None, before: str | None = None, limit: int = 50
    ) -> Flow[list[Job]]:
        """List at most `limit` jobs, newest first, from after the one whose id is `before`."""
        query = {"state": state, "kind": kind, "before": before, "limit": limit}
        found = yield from self._list("/jobs", "jobs", query)
        return [read(Job, entry) for entry in found]

    @Operation
    def trials(
        self,
        *,
        device: str | None = None,
        problem: Problem | str | None = None,
        kernel: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        round: str | None = None,  # noqa: A002 - the parameter's name over HTTP
        samples: bool = False,
        after: int = 0,
        limit: int = 100,
    ) -> Flow[list[Trial]]:
        """List at most `limit` trials with an id above `after`, by id: all of them, or those that the filters name.

        With `samples` each carries its samples in milliseconds.
        """
        key = problem.key if isinstance(problem, Problem) else problem
        query = {
            "device": device,
            "problem": key,
            "kernel": kernel,
            "state": state,
            "job_id": job_id,
            "round": round,
            "samples": "true" if samples else None,
            "after": after,
            "limit": limit,
        }
        found = yield from self._list("/trials", "trials", query)
        return [read(Trial, entry) for entry in found]

    @Operation
    def recording(self, job_id: str) -> Flow[str]:
        """Give a job's trials as a recording, a JSON value a line, for `tilewise replay`."""
        return (yield from self._get("/trials", {"job_id": job_id, "format": "replay"})).body.decode()

    @Operation
    def devices(self) -> Flow[list[Device]]:
        """List the devices of the service's host."""
        found = yield from self._list("/devices", "devices")
        return [read(Device, entry) for entry in found]

    @Operation
    def kernels(self) -> Flow[list[Kernel]]:
        """List the kernels that the service tunes, in ladder order."""
        found = yield from self._list("/kernels", "kernels")
        return [read(Kernel, entry) for entry in found]

    def _get(self, path: str, query: Mapping[str, object | None] | None = None) -> Flow[Reply]:
        return (yield from self.transport.exchange(Ask("GET", target(path, query or {}), again=True)))

    def _list(
        self, path: str, member: str, query: Mapping[str, object | None] | None = None
    ) -> Flow[list[dict[str, Any]]]:
        body = (yield from self._get(path, query)).json()
        return list(body[member] if isinstance(body, dict) else body)

    def _as(self, kind: type[T], reply: Reply) -> T:
        try:
            return read(kind, reply.json())
        except (TypeError, KeyError, ValueError) as error:
            message = f"the answer is no {kind.__name__.lower()}: {error}"
            raise UnreadableAnswer(message, reply.status, "unreadable") from error
