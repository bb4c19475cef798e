"""POST /import/{format}, and the imports of a principal: listed, looked at, deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, cast

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.body.stream import unpacked_body
from app.api.errors import documented, timed_out
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.responses import Answer, reply
from app.api.schemas import Name, Nothing, ProblemFilter
from app.api.state import service_of, threads_of
from app.errors import BodyTooLarge, Invalid, InvalidFile
from app.interchange.formats import FORMATS, FileSubject
from app.interchange.json_text import refused
from app.services.interchange.imports import MOST_BYTES
from app.services.interchange.report import ImportReport
from app.store.records import ImportRecord

router = DirectRouter("interchange")

ImportId = Annotated[str, Path(description="The import's id.")]
ImportFormat = Annotated[
    Literal["bundle", "kernel-tuner", "t4", "t4-1.0", "store-results", "wisdom", "csv", "parquet"],
    Path(description="; ".join(f"`{one.name}`: {one.holds}" for one in FORMATS.values())),
]
LineOutcome = Literal["added", "same", "better", "worse", "conflict", "refused"]
_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class ImportQuery(ProblemFilter):
    """What the file's results are of, where it does not say so; a device and a kernel count before the file's own."""

    device: Annotated[Name | None, Field(description="The device's model or name.")] = None
    kernel: Annotated[Name | None, Field(description="The kernel's name.", examples=["tiled"])] = None

    def subject(self) -> FileSubject:
        """The domain's value; raises Invalid."""
        return FileSubject(self.device, self.kernel, self.members())


class Import(Answer):
    """A file of results that was imported; `counts` are its lines by what became of them."""

    id: str
    format: str
    sha256: Annotated[str, Field(description="Of the file.")]
    bytes: Annotated[int, Field(description="Stored of it, which count against the quota.")]
    counts: dict[LineOutcome, int]
    created_at: datetime
    expires_at: datetime | None

    @classmethod
    def of(cls, value: ImportRecord) -> Import:
        """Take the store's record."""
        return cls(
            id=value.id,
            format=value.format,
            sha256=value.sha256,
            bytes=value.nbytes,
            counts=cast("dict[LineOutcome, int]", dict(value.counts)),
            created_at=value.created_at,
            expires_at=value.expires_at,
        )


class ImportLine(Answer):
    """A line of the file: what became of it, what it is about, and why."""

    line: int
    outcome: LineOutcome
    subject: str
    detail: str


class Imported(Answer):
    """A file that was just imported, with every line's outcome, in the file's order."""

    imported: Import
    lines: list[ImportLine]

    @classmethod
    def of(cls, record: ImportRecord, report: ImportReport) -> Imported:
        """Take the domain's values."""
        lines = [
            ImportLine(line=one.line, outcome=cast("LineOutcome", one.outcome), subject=one.subject, detail=one.detail)
            for one in report.lines
        ]
        return cls(imported=Import.of(record), lines=lines)


class Imports(Answer):
    """A principal's imports, newest first."""

    imports: list[Import]


_EXAMPLE: Final[dict[str, Any]] = {
    "id": "5b1f0e7c9a",
    "format": "bundle",
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "bytes": 2048,
    "counts": {"added": 1, "same": 0, "better": 0, "worse": 0, "conflict": 0, "refused": 0},
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": "2026-05-01T12:00:00Z",
}
_LINE: Final[dict[str, Any]] = {
    "line": 2,
    "outcome": "added",
    "subject": "the best of 512x512x512 float32 on NVIDIA H200 | sm_90 | 132 SMs | 140 GiB",
    "detail": "tiled BM=16,BN=16,BK=16 takes 0.0425 ms",
}
EXAMPLES: Final[dict[str, Any]] = {
    "Import": _EXAMPLE,
    "ImportLine": _LINE,
    "Imported": {"imported": _EXAMPLE, "lines": [_LINE]},
    "Imports": {"imports": [_EXAMPLE]},
}


@router.post(
    "/import/{format}",
    summary="Import results",
    status_code=201,
    response_model=Imported,
    responses=timed_out()
    | documented(
        errors.Malformed,
        errors.BodyTooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
        errors.InvalidFile,
        errors.Unsupported,
        errors.NoRoom,
        errors.StoreFailed,
        errors.QuotaExceeded,
    ),
    query=ImportQuery,
    openapi_extra=_BODY,
)
async def import_results(request: Request, format: ImportFormat) -> Response:  # noqa: A002 - the path's name for it
    """Take in what was measured elsewhere, and say of every line what is different here.

    It is a prior until it is measured here: your tunes try its fastest configs first, and `GET /best-config` answers
    you by it, as `nearest` and with its `source`, where nothing better is known. It is yours alone, counts against
    TILEWISE_IMPORT_BYTES, and expires. Of a file that is refused nothing is stored.
    """
    asked, service = read_query(ImportQuery, request), service_of(request)
    if format not in FORMATS:
        raise Invalid(f"a format is one of {', '.join(FORMATS)}, got {format[:40]}", formats=list(FORMATS))
    subject = asked.subject()
    with service.imports.slot():
        data = await _whole(request)
        what = format, data, subject, principal_of(request)
        record, report = await threads_of(request).call(service.imports.add, *what)
    return reply(Imported.of(record, report), 201, {"Location": f"/imports/{record.id}"})


@router.get(
    "/imports",
    summary="List imports, newest first",
    response_model=Imports,
    responses=documented(errors.Invalid, errors.StoreFailed),
)
async def list_imports(request: Request) -> Response:
    """What you imported and has not expired."""
    read_query(Nothing, request)
    found = await threads_of(request).call(service_of(request).imports.list, principal_of(request))
    return reply(Imports(imports=[Import.of(record) for record in found]))


@router.get(
    "/imports/{import_id}",
    summary="One import",
    response_model=Import,
    responses=documented(errors.UnknownImport, errors.Invalid, errors.StoreFailed),
)
async def get_import(request: Request, import_id: ImportId) -> Response:
    """An import; what it holds is exported by `GET /export/{format}?import_id=`."""
    read_query(Nothing, request)
    service = service_of(request)
    return reply(Import.of(await threads_of(request).call(service.imports.get, import_id, principal_of(request))))


@router.delete(
    "/imports/{import_id}",
    summary="Delete an import",
    status_code=204,
    responses=documented(errors.UnknownImport, errors.Invalid, errors.StoreFailed),
)
async def delete_import(request: Request, import_id: ImportId) -> Response:
    """Forget an import: no answer and no search rests on it any more. What was measured since stays."""
    read_query(Nothing, request)
    service = service_of(request)
    await threads_of(request).call(service.imports.delete, import_id, principal_of(request))
    return Response(status_code=204)


async def _whole(request: Request) -> bytes:
    """The file; raises UnsupportedMediaType, Malformed, and InvalidFile for one that is too large, where it is."""
    data, threads = bytearray(), threads_of(request)
    try:
        async for piece in unpacked_body(request, 2 * MOST_BYTES).pieces():  # the file's own limit is looked at here
            data += piece
            if len(data) > MOST_BYTES:
                break
    except BodyTooLarge as error:
        raise await threads.call(_refused_after, data, error.message) from error
    if len(data) > MOST_BYTES:
        del data[MOST_BYTES:]
        raise await threads.call(_refused_after, data, f"a file has at most {MOST_BYTES} bytes")
    return bytes(data)


def _refused_after(data: bytearray, message: str) -> InvalidFile:
    return refused(message, data.count(b"\n") + 1, len(data) - data.rfind(b"\n"))
