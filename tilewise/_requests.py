"""RequestMethods: what a client reads of a service: bests, misses, jobs, trials, devices, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal, TypeVar

from tilewise._analysis import Analysis
from tilewise._gauges import DeviceGauges
from tilewise._http1 import HttpRequest, HttpResponse, target
from tilewise._notebook import ShownPage
from tilewise._pool import Transport
from tilewise._sansio import Flow, Operation
from tilewise.decoding import from_json
from tilewise.errors import ClientError, UnreachableError, UnreadableAnswer
from tilewise.models import Best, Device, Job, Kernel, Miss, Readiness, Trial
from tilewise.shapes import Problem, ShapeLike, shape_of, sizes_of

T = TypeVar("T")


class Page(ShownPage, list[T]):
    """Some entries of a list. `next` is the `cursor` that gives the page after this one; None if there is none."""

    def __init__(self, entries: Iterable[T] = (), following: str | None = None) -> None:
        super().__init__(entries)
        self.next = following


class RequestMethods:
    """Requests that change nothing. Every method raises ClientError if the service refuses."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @Operation
    def best_config(
        self,
        m: ShapeLike,
        n: int | None = None,
        k: int | None = None,
        *,
        batch: int | None = None,
        dtype: str = "float32",
        precision: str = "strict",
        trans_a: bool = False,
        trans_b: bool = False,
        device: str | None = None,
        match: Literal["exact"] | None = None,
    ) -> Flow[Best]:
        """Give the best known config of m x n x k, or of what stands for all three, such as "512x512x512".

        With match="exact", raises NotTuned if the problem was never tuned.
        """
        sizes = sizes_of(m, n, k, batch)
        problem = Problem(sizes.m, sizes.n, sizes.k, sizes.batch, dtype, precision, trans_a, trans_b)
        query = {**members_of(problem), "device": device, "match": match}
        return self._as(Best, (yield from self._get("/best-config", query)))

    @Operation
    def bests(
        self,
        *,
        device: str | None = None,
        problem: Problem | ShapeLike | None = None,
        dtype: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Flow[Page[Best]]:
        """List at most `limit` of what is stored for the problems that were tuned here, newest first.

        `problem` is one, or a shape of any dtype. The page's `next` is the `cursor` of the page after it.
        """
        query = {"device": device, **filter_members(problem, dtype), "cursor": cursor, "limit": limit}
        return (yield from self._page(Best, "bests", query))

    @Operation
    def delete_best(self, problem: Problem | ShapeLike, *, device: str | None = None) -> Flow[None]:
        """Have the service forget the stored best of a problem, or of a shape in float32; raises NotTuned."""
        where = target("/bests", filter_members(problem, None) | {"device": device})
        yield from self.transport.exchange(HttpRequest("DELETE", where))

    @Operation
    def misses(
        self,
        *,
        device: str | None = None,
        problem: Problem | ShapeLike | None = None,
        dtype: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Flow[Page[Miss]]:
        """List at most `limit` of the shapes that were asked for and are not tuned, most often first; as `bests`."""
        query = {"device": device, **filter_members(problem, dtype), "cursor": cursor, "limit": limit}
        return (yield from self._page(Miss, "misses", query))

    @Operation
    def dismiss_miss(self, problem: Problem | ShapeLike, *, device: str | None = None) -> Flow[None]:
        """Have the service forget that a problem, or a shape in float32, was asked for; raises UnknownMiss."""
        where = target("/misses", filter_members(problem, None) | {"device": device})
        yield from self.transport.exchange(HttpRequest("DELETE", where))

    @Operation
    def jobs(
        self, *, state: str | None = None, kind: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Flow[Page[Job]]:
        """List at most `limit` jobs, newest first. The page's `next` is the `cursor` of the page after it."""
        query = {"state": state, "kind": kind, "cursor": cursor, "limit": limit}
        return (yield from self._page(Job, "jobs", query))

    @Operation
    def trials(
        self,
        *,
        device: str | None = None,
        problem: Problem | ShapeLike | None = None,
        dtype: str | None = None,
        kernel: str | None = None,
        state: str | None = None,
        job_id: str | None = None,
        round: str | None = None,  # noqa: A002 - the parameter's name over HTTP
        samples: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Flow[Page[Trial]]:
        """List at most `limit` trials, oldest first: of all, or of those that the filters name.

        `problem` is one, or a shape of any dtype. With `samples` each carries its samples in milliseconds. The page's
        `next` is the `cursor` of the page after it.
        """
        query = {
            "device": device,
            **filter_members(problem, dtype),
            "kernel": kernel,
            "state": state,
            "job_id": job_id,
            "round": round,
            "samples": "true" if samples else None,
            "cursor": cursor,
            "limit": limit,
        }
        return (yield from self._page(Trial, "trials", query))

    @Operation
    def recording(self, job_id: str) -> Flow[str]:
        """Give a job's trials as a recording, a JSON value a line, for `tilewise replay`."""
        return (yield from self._get("/trials", {"job_id": job_id, "format": "replay"})).body.decode()

    @Operation
    def devices(self) -> Flow[list[Device]]:
        """List the devices of the service's host."""
        found = yield from self._list("/devices", "devices")
        return [from_json(Device, entry) for entry in found]

    @Operation
    def device_gauges(self) -> Flow[list[DeviceGauges]]:
        """Tell how busy each device is, its clocks, power, heat and memory, and how many calls wait for it."""
        return [from_json(DeviceGauges, entry) for entry in (yield from self._list("/devices/gauges", "devices"))]

    @Operation
    def reasons(self) -> Flow[tuple[str, ...]]:
        """Say why other devices of the service's host could not be opened."""
        return tuple((yield from self._get("/devices")).json().get("reasons", ()))

    @Operation
    def readiness(self) -> Flow[Readiness]:
        """Tell whether products are served, and why not; raises UnreachableError if nobody answers."""
        try:
            reply = yield from self.transport.exchange(HttpRequest("GET", "/health/ready", again=True, patient=False))
        except UnreachableError:
            raise
        except ClientError as error:
            reasons = tuple(error.body.get("reasons", ())) or (error.message,)
            return Readiness("not_ready", reasons, *map(error.body.get, ("verified", "pending", "total")))
        return self._as(Readiness, reply)

    @Operation
    def analysis(
        self,
        m: ShapeLike,
        n: int | None = None,
        k: int | None = None,
        *,
        tile: int | None = None,
        batch: int | None = None,
        dtype: str = "float32",
        kernel: str = "tiled",
        device: str | None = None,
        config: Mapping[str, int] | None = None,
    ) -> Flow[Analysis]:
        """Work out what a square tile, or a whole config of any kernel, costs a product: bytes, operations, blocks."""
        text = None if config is None else ",".join(f"{name}={value}" for name, value in config.items())
        asked = {"tile": tile, "config": text, "dtype": dtype, "kernel": kernel, "device": device}
        query = {**asdict(sizes_of(m, n, k, batch)), **asked}
        return self._as(Analysis, (yield from self._get("/analysis", query)))

    @Operation
    def kernels(self) -> Flow[list[Kernel]]:
        """List the kernels that the service tunes, in ladder order."""
        found = yield from self._list("/kernels", "kernels")
        return [from_json(Kernel, entry) for entry in found]

    def _get(self, path: str, query: Mapping[str, object | None] | None = None) -> Flow[HttpResponse]:
        return (yield from self.transport.exchange(HttpRequest("GET", target(path, query or {}), again=True)))

    def _page(self, kind: type[T], member: str, query: Mapping[str, object | None]) -> Flow[Page[T]]:
        body = (yield from self._get(f"/{member}", query)).json()
        return Page([from_json(kind, entry) for entry in body[member]], body.get("next"))

    def _list(
        self, path: str, member: str, query: Mapping[str, object | None] | None = None
    ) -> Flow[list[dict[str, Any]]]:
        body = (yield from self._get(path, query)).json()
        return list(body[member] if isinstance(body, dict) else body)

    def _as(self, kind: type[T], reply: HttpResponse) -> T:
        try:
            return from_json(kind, reply.json())
        except (TypeError, KeyError, ValueError) as error:
            message = f"the answer is no {kind.__name__.lower()}: {error}"
            raise UnreadableAnswer(message, reply.status, "unreadable") from error


def filter_members(problem: Problem | ShapeLike | None, dtype: str | None) -> dict[str, object | None]:
    """The members of a query that name one problem, or every problem of a shape."""
    if isinstance(problem, Problem):
        return members_of(problem)
    if problem is None:
        return {"dtype": dtype}
    shape = shape_of(problem)
    return {**asdict(shape), "dtype": dtype}


def members_of(problem: Problem) -> dict[str, object | None]:
    """A problem as the members of a query."""
    flags = {name: str(getattr(problem, name)).lower() for name in ("trans_a", "trans_b")}
    return asdict(problem) | flags
