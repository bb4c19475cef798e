"""WorkloadMethods: files of a program's products, read, tuned and reported on."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from tilewise._http1 import HttpRequest, target
from tilewise._requests import Page, RequestMethods
from tilewise._sansio import Flow, Operation, Work
from tilewise.arguments import WorkloadArguments
from tilewise.shapes import Problem

_BINARY = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Incumbent:
    """What ran a product in the program, by its file; None is what the file does not tell."""

    name: str | None = None
    total_ms: float | None = None
    mean_ms: float | None = None
    ci95_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """One call as it was measured on the device: the median of its time, and its 95 % interval."""

    name: str
    config: Mapping[str, int]
    median_ms: float
    ci95_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShapeReport:
    """One product of the program: how often it runs, the time at stake, and what it takes before and after.

    `before` is the vendor's library, or the untuned default where there is none, `winner` the fastest of the service's,
    `after` the winner where it is faster beyond both intervals, else what was before. None is for the `reason`.
    """

    problem: Problem
    count: int
    stake_ms: float
    incumbent: Incumbent = field(default_factory=Incumbent)
    before: MeasuredCall | None = None
    winner: MeasuredCall | None = None
    after: MeasuredCall | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TotalTime:
    """All calls of the products that were measured, and what lies between the sums of all bounds."""

    ms: float
    ci95_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Products of the file that are no problem here."""

    what: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A program's products, those with most time at stake first, and what they take before and after in all.

    `covered` is the part of the time at stake that both totals are of; `job` is the id of the job that tunes it, or did
    last. In a list `products` and `skipped` are empty.
    """

    id: str
    name: str
    source: str
    shapes: int
    calls: int
    created_at: datetime
    job: str | None = None
    device: str | None = None
    summary: str = ""
    before: TotalTime | None = None
    after: TotalTime | None = None
    covered: float = 0.0
    products: tuple[ShapeReport, ...] = ()
    skipped: tuple[Skipped, ...] = ()


class WorkloadMethods(RequestMethods):
    """Workloads. Every method raises ClientError if the service refuses."""

    @Operation
    def create_workload(
        self,
        file: str | os.PathLike[str] | bytes,
        *,
        name: str | None = None,
        source: str | None = None,
        dtype: str = "float32",
        precision: str = "strict",
        free: int | None = None,
        tune: float | None = None,
        device: str | None = None,
    ) -> Flow[Workload]:
        """Have the products of a file counted: of a profiler's trace, a log, a list, an ONNX model, or lines of shapes.

        `file` is its path, or what it holds. `dtype`, `precision` and `free`, the size of dimensions that have names,
        are for what the file leaves open. With `tune` one job begins, which spends so many seconds by time at stake.
        """
        called = name if name is not None or isinstance(file, bytes) else Path(file).name
        arguments = WorkloadArguments(called, source, dtype, precision, free, tune, device)
        data: memoryview = yield Work(lambda: _read(file))
        ask = HttpRequest("POST", target("/workloads", arguments.query()), (data,), _BINARY, again=True)
        return self._as(Workload, (yield from self.transport.exchange(ask)))

    @Operation
    def tune_workload(self, workload_id: str, seconds: float, *, device: str | None = None) -> Flow[Workload]:
        """Begin one job that spends so many seconds on a workload by time at stake; its `job` is the id."""
        where = target(f"{_place(workload_id)}/tune", {"tune": seconds, "device": device})
        return self._as(Workload, (yield from self.transport.exchange(HttpRequest("POST", where, again=True))))

    @Operation
    def workload(self, workload_id: str, *, device: str | None = None) -> Flow[Workload]:
        """Report on a workload as it is known now."""
        return self._as(Workload, (yield from self._get(_place(workload_id), {"device": device})))

    @Operation
    def workloads(self, *, cursor: str | None = None, limit: int = 100) -> Flow[Page[Workload]]:
        """List at most `limit` workloads, newest first. The page's `next` is the `cursor` of the page after it."""
        return (yield from self._page(Workload, "workloads", {"cursor": cursor, "limit": limit}))

    @Operation
    def delete_workload(self, workload_id: str) -> Flow[None]:
        """Have the service forget a workload; what was measured for it stays."""
        yield from self.transport.exchange(HttpRequest("DELETE", _place(workload_id), again=True, done=404))


def _place(workload_id: str) -> str:
    return f"/workloads/{quote(workload_id, safe='')}"


def _read(file: str | os.PathLike[str] | bytes) -> memoryview:
    """A file's bytes, of which none is read before it is sent."""
    if isinstance(file, bytes):
        return memoryview(file)
    with Path(file).open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
