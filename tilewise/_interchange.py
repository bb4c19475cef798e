"""InterchangeMethods: results as files, exported and imported, and the history of bests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from tilewise._http1 import HttpRequest, target
from tilewise._requests import Page, RequestMethods, filter_members
from tilewise._sansio import Flow, Operation
from tilewise.decoding import from_json
from tilewise.shapes import Problem, ShapeLike

_BYTES = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class Import:
    """A file of results that was imported; `counts` are its lines by what became of them, `bytes` what is stored."""

    id: str
    format: str
    sha256: str
    bytes: int
    counts: Mapping[str, int]
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ImportLine:
    """What became of a line of a file: added, same, better, worse, conflict or refused."""

    line: int
    outcome: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Imported:
    """A file that was just imported, and every line of it."""

    imported: Import
    lines: tuple[ImportLine, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BestRevision:
    """What became the best of a problem (`event` promoted), or stopped to be it (deleted); times in milliseconds."""

    number: int
    event: str
    at: datetime
    device_model: str
    problem: Problem
    job_id: str | None
    kernel: str
    config: Mapping[str, int]
    environment: str
    median_ms: float | None
    ci95_ms: tuple[float, float] | None
    samples: int | None
    default_ms: float | None
    vendor_ms: float | None


class InterchangeMethods(RequestMethods):
    """Results as files. Every method raises ClientError if the service refuses."""

    @Operation
    def export_results(
        self,
        format: str = "bundle",  # noqa: A002 - the path's name for it
        *,
        problem: Problem | ShapeLike | None = None,
        dtype: str | None = None,
        device: str | None = None,
        kernel: str | None = None,
        job_id: str | None = None,
        import_id: str | None = None,
        trials: bool = True,
    ) -> Flow[bytes]:
        """Give what the service measured, or what an import holds, as a file of a format.

        There are bundle, kernel-tuner, t4, t4-1.0, store-results, wisdom, csv, parquet, and header for C. Raises
        NotTuned where there is nothing.
        """
        query = {**filter_members(problem, dtype), "device": device, "kernel": kernel, "job_id": job_id}
        query |= {"import_id": import_id, "trials": None if trials else "false"}
        return bytes((yield from self._get(f"/export/{quote(format, safe='')}", query)).body)

    @Operation
    def import_results(
        self,
        data: bytes,
        format: str = "bundle",  # noqa: A002 - the path's name for it
        *,
        problem: Problem | ShapeLike | None = None,
        dtype: str | None = None,
        device: str | None = None,
        kernel: str | None = None,
    ) -> Flow[Imported]:
        """Have the service take in what was measured elsewhere, and tell of each line what is different there.

        `problem`, `device` and `kernel` are what the results are of, where the file does not say it. Raises InvalidFile
        with the line and column of what is wrong, and QuotaExceeded.
        """
        query: dict[str, Any] = {**filter_members(problem, dtype), "device": device, "kernel": kernel}
        where = target(f"/import/{quote(format, safe='')}", query)
        return self._as(
            Imported, (yield from self.transport.exchange(HttpRequest("POST", where, (memoryview(data),), _BYTES)))
        )

    @Operation
    def imports(self) -> Flow[list[Import]]:
        """List what you imported and has not expired, newest first."""
        return [from_json(Import, entry) for entry in (yield from self._list("/imports", "imports"))]

    @Operation
    def delete_import(self, import_id: str) -> Flow[None]:
        """Have the service forget an import; raises UnknownImport."""
        yield from self.transport.exchange(HttpRequest("DELETE", f"/imports/{quote(import_id, safe='')}"))

    @Operation
    def best_history(
        self,
        *,
        problem: Problem | ShapeLike | None = None,
        dtype: str | None = None,
        device: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Flow[Page[BestRevision]]:
        """List at most `limit` promotions and deletions of bests, newest first; as `bests`."""
        query = {"device": device, **filter_members(problem, dtype), "cursor": cursor, "limit": limit}
        body = (yield from self._get("/bests/history", query)).json()
        return Page([from_json(BestRevision, entry) for entry in body["history"]], body.get("next"))
