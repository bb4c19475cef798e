"""tilewise export, import and imports."""

from __future__ import annotations

import gzip
import sys
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer
from rich import box
from rich.table import Table

from app.cli import render
from app.cli.commands.jobs import MaybeJobId, find
from app.cli.exit_codes import Exit
from app.cli.options import (
    DeviceId,
    Dtype,
    Json,
    KernelName,
    Output,
    Quiet,
    Url,
    readable,
    settings,
    shape_of,
    usage,
)
from app.cli.session import Records, records
from tilewise import Imported, Problem

_REPLAY: Final = "replay"
_BUNDLE: Final = "bundle"
_SHOWN: Final = 40  # lines of a report that people read
_DULL: Final = {"added", "same"}
_MOST: Final = 2**25  # bytes of a file, unpacked
_FORMATS: Final = "bundle, kernel-tuner, t4, t4-1.0, store-results, wisdom, csv or parquet"
ShapeText = Annotated[str | None, typer.Option("--shape", help="Only this shape, or the shape that the file is of.")]


def export(
    output: Output,
    job: MaybeJobId = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help=f"{_FORMATS}, header (for C), or replay, which is a job's where none is named."),
    ] = None,
    kernel: KernelName = None,
    shape: ShapeText = None,
    dtype: Dtype = "float32",
    device: DeviceId = None,
    imported: Annotated[str | None, typer.Option("--import", help="What this import holds.")] = None,
    url: Url = None,
    quiet: Quiet = False,
) -> None:
    """Write results to a file: of a job, of all that is stored, or of what the options name."""
    err, name = render.consoles(quiet=quiet)[1], form or (_REPLAY if job is not None else _BUNDLE)
    with usage():
        problem = _problem(shape, dtype)
        if name == _REPLAY and job is None:
            raise ValueError("a recording is a job's: name one")
    with records(settings(), url, "tilewise export", err) as here:
        job_id = None if job is None else find(here, job).id
        if name == _REPLAY:
            content = _recording(here, job_id or "")
        else:
            content = here.export_results(
                name, problem=problem, device=device, kernel=kernel, job_id=job_id, import_id=imported
            )
    if str(output) == "-":
        sys.stdout.buffer.write(content)
        return
    output.write_bytes(gzip.compress(content, mtime=0) if output.suffix == ".gz" else content)
    err.print(f"{output} holds {content.count(bytes([10]))} lines.")


def import_results(
    file: Annotated[Path, typer.Argument(metavar="FILE", callback=readable, help="The file; - is standard input.")],
    form: Annotated[
        str | None, typer.Option("--format", help=f"{_FORMATS}; by default what the file begins like.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="The kernel that the results are of.")] = None,
    shape: ShapeText = None,
    dtype: Dtype = "float32",
    device: Annotated[str | None, typer.Option(help="The model or name of the device that they are of.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Take in what was measured elsewhere, and say what is different here; it is a prior of your tunes."""
    from app.interchange.formats import detected  # noqa: PLC0415 - the other commands need not load the formats

    out, err = render.consoles()
    with usage():
        data, problem = unpacked(file), _problem(shape, dtype)
        if (name := form or detected(data)) is None:
            raise ValueError(f"{file} is of no format that is known by its beginning: --format is {_FORMATS}")
    with records(settings(), url, "tilewise import", err) as here:
        found = here.import_results(data, name, problem=problem, device=device, kernel=kernel)
    if as_json:
        render.print_json(found)
        return
    counts = ", ".join(f"{count} {outcome}" for outcome, count in found.imported.counts.items() if count)
    out.print(f"Import {found.imported.id} ({name}): {counts or 'nothing'}.", soft_wrap=True)
    told = [line for line in found.lines if line.outcome not in _DULL]
    if told:
        out.print(_table(found))
    if len(told) > _SHOWN:
        err.print(f"{len(told) - _SHOWN} more lines differ: --json has them all.")


def imports(
    delete: Annotated[str | None, typer.Option(help="Forget the import of this id.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List what was imported and has not expired, newest first, or forget one."""
    out, err = render.consoles()
    with records(settings(), url, "tilewise imports", err) as here:
        if delete is not None:
            here.delete_import(delete)
        found = here.imports()
    if as_json:
        render.print_json(found)
        return
    if not found:
        err.print("Nothing is imported.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("Id", "Format", "Lines", "Bytes", "Imported", "Expires"):
        table.add_column(title, overflow="fold", no_wrap=title == "Id")
    for one in found:
        ends = "never" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d}"
        count = str(sum(one.counts.values()))
        table.add_row(one.id, one.format, count, str(one.bytes), f"{one.created_at:%Y-%m-%d %H:%M}", ends)
    out.print(table)


def _problem(shape: str | None, dtype: str) -> Problem | None:
    if shape is None:
        return None
    found = shape_of([shape])
    return Problem(found.m, found.n, found.k, found.batch, dtype)


def _recording(here: Records, job_id: str) -> bytes:
    """A job's trials to be replayed; ends the command where there are none."""
    text = here.recording(job_id)
    if not text:
        render.consoles()[1].print(f"Job {job_id} has no trials that could be replayed.")
        raise typer.Exit(Exit.FAILED)
    return text.encode()


def unpacked(file: Path) -> bytes:
    """A file's bytes, unpacked if it is gzip; raises ValueError for one that is too large or cannot be unpacked."""
    with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as opened:
        data = opened.read(_MOST + 1)
    if data[:2] == b"\x1f\x8b":
        try:
            data = zlib.decompressobj(31).decompress(data, _MOST + 1)
        except zlib.error as error:
            raise ValueError(f"{file} cannot be unpacked: {error}") from error
    if len(data) > _MOST:
        raise ValueError(f"{file} has more than {_MOST} bytes")
    return data


def _table(found: Imported) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("Line", "Outcome", "What", "Why"):
        table.add_column(title, overflow="fold", justify="right" if title == "Line" else "left")
    told = [line for line in found.lines if line.outcome not in _DULL]
    for line in told[:_SHOWN]:
        table.add_row(str(line.line), line.outcome, line.subject, line.detail)
    return table
