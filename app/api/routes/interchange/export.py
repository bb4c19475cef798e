"""GET /export/{format}: stored trials and bests, or an import, as a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.admission.request_guard import principal_of
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import read_query
from app.api.schemas import Name, ProblemFilter
from app.api.state import service_of, threads_of
from app.api.streamed_text import streamed
from app.errors import Invalid
from app.interchange.formats import FORMATS, FileFormat, write
from app.interchange.results import ResultsFile
from app.services.best.known_devices import KnownDevices
from app.services.interchange.export import ResultsExport, macros_of
from app.services.interchange.imports import ImportService
from app.services.jobs.service import JobService
from app.services.principal import Principal

router = DirectRouter("interchange")

_HEADER: Final = FileFormat("header", "text/x-c", ".h", "a C header of a kernel's best configs, by device and size")
WRITTEN: Final = {**FORMATS, _HEADER.name: _HEADER}
_PIECE: Final = 2**16  # bytes sent at once
ExportFormat = Annotated[
    Literal["bundle", "kernel-tuner", "t4", "t4-1.0", "store-results", "wisdom", "csv", "parquet", "header"],
    Path(description="; ".join(f"`{one.name}`: {one.holds}" for one in WRITTEN.values())),
]
_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The file.",
        "content": {
            **{one.media: {"schema": {"type": "string", "format": "binary"}} for one in WRITTEN.values()},
            "application/json": {"schema": {"type": "object"}, "example": {"kernel_name": "tiled", "cache": {}}},
        },
    }
}


@dataclass(frozen=True, slots=True)
class ExportSources:
    """Where the results of an export come from."""

    jobs: JobService
    imports: ImportService
    export: ResultsExport
    devices: KnownDevices


class ExportQuery(ProblemFilter):
    """What to export: all that is stored, or what the filters name."""

    device: Annotated[Name | None, Field(description="Only what was measured on this device's model.")] = None
    kernel: Annotated[Name | None, Field(description="Only this kernel's.")] = None
    job_id: Annotated[Name | None, Field(description="Only this job's trials, and the bests that it found.")] = None
    import_id: Annotated[
        Name | None, Field(description="What one of your imports holds, in place of what was measured here.")
    ] = None
    trials: Annotated[bool, Field(description="With `false`, a bundle has the bests alone.")] = True


@router.get(
    "/export/{format}",
    summary="Export results",
    response_class=Response,
    responses=_FILE
    | documented(
        errors.UnknownDevice,
        errors.UnknownJob,
        errors.UnknownImport,
        errors.NotTuned,
        errors.Invalid,
        errors.Unsupported,
        errors.StoreFailed,
        errors.NoDevice,
    ),
    query=ExportQuery,
)
async def export_results(request: Request, format: ExportFormat) -> Response:  # noqa: A002 - the path's name for it
    """Trials and bests as a file that another service imports (`bundle`), or that another program reads.

    Equal stores give equal bundles. Kernel Tuner's cache and T4 hold one space: filter by problem and kernel.
    """
    asked, service, threads = read_query(ExportQuery, request), service_of(request), threads_of(request)
    known = WRITTEN.get(format)
    if known is None:
        raise Invalid(f"a format is one of {', '.join(WRITTEN)}, got {format[:40]}", formats=list(WRITTEN))
    sources = ExportSources(service.jobs, service.imports, service.stored_results, service.fleet)
    lines = await threads.call(exported, sources, known.name, asked, principal_of(request))
    name = f'attachment; filename="tilewise{known.suffix}"'
    return await streamed(lines, threads, known.media, {"Content-Disposition": name})


def exported(sources: ExportSources, name: str, asked: ExportQuery, principal: Principal) -> Iterator[bytes]:
    """The pieces of a file; raises NotTuned, UnknownJob, UnknownImport, UnknownDevice, Invalid, Unsupported."""
    file = _found(sources, asked, principal)
    if not asked.trials:
        file = ResultsFile((), file.bests)
    try:
        pieces = _pieces(write(name, file, f"Tilewise {version('tilewise')}", macros_of))
        first = next(pieces, b"")
    except ValueError as error:
        raise Invalid(str(error)) from error
    return _after(first, pieces)


def _found(sources: ExportSources, asked: ExportQuery, principal: Principal) -> ResultsFile:
    if asked.import_id is not None:
        return sources.imports.file(asked.import_id, principal)
    if asked.job_id is not None:
        sources.jobs.get(asked.job_id, principal)
    model = None if asked.device is None else sources.devices.unit(asked.device).device.model
    filters = {"device_model": model, "problem": asked.members(), "kernel": asked.kernel, "job_id": asked.job_id}
    return sources.export.file(filters)


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines together, as many as are sent at once."""
    held = bytearray()
    for line in lines:
        held += line
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _after(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest
