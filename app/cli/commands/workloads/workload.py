"""tilewise workload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from app.cli import render
from app.cli.commands.jobs import reason_of
from app.cli.commands.tune import followed
from app.cli.exit_codes import Exit
from app.cli.options import DeviceId, Dtype, Json, Precision, Quiet, Url, readable, settings
from app.cli.session import session
from tilewise import MeasuredCall, ShapeReport, TotalTime, Workload
from tilewise.arguments import WorkloadArguments

_WORST: Final = 4  # digits of a time

File = Annotated[
    Path, typer.Argument(metavar="FILE", callback=readable, help="A trace, log, list or model; - is standard input.")
]
Source = Annotated[
    str | None,
    typer.Option(
        help="torch.profiler, cublaslt, tunableop, aiter, hipblaslt, cutlass, onnx or shapes; seen by itself else."
    ),
]


def workload(
    file: File,
    tune: Annotated[float | None, typer.Option(min=0.1, help="Tune it for so many seconds.")] = None,
    source: Source = None,
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    free: Annotated[int | None, typer.Option(min=1, help="Size of a model's dimensions that have names.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Show so many products, those with most time at stake.")] = 20,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say which products a program runs and what they cost; with --tune, make them faster, the costliest first."""
    out, err = render.consoles(quiet=quiet)
    data = sys.stdin.buffer.read() if str(file) == "-" else file
    with session(settings(), url, "tilewise workload", err) as here:
        found = here.start_workload(data, WorkloadArguments(None, source, dtype, precision, free, tune, device))
        job = None if tune is None or found.job is None else followed(here, here.job(found.job), err)
        found = here.workload(found.id, device=device)
    if as_json:
        render.print_json(found)
    else:
        out.print(_table(found, top))
        for line in _notes(found, top):
            out.print(line, soft_wrap=True, markup=False, highlight=False)
    if job is not None and job.state != "succeeded":
        err.print(f"The job {job.state}: {escape(reason_of(job.error or {}))}.")
        raise typer.Exit(Exit.FAILED)


def _table(found: Workload, top: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("Product", "Calls", "In the file (ms)", "Before (ms)", "Ours (ms)", "Use"):
        right = name not in {"Product", "Use"}
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for one in found.products[:top]:
        total = one.incumbent.total_ms
        file = "" if total is None else f"{total:.{_WORST}g}"
        use = "" if one.after is None else one.after.name
        table.add_row(str(one.problem), str(one.count), file, _of_all(one, one.before), _of_all(one, one.winner), use)
    return table


def _of_all(one: ShapeReport, call: MeasuredCall | None) -> str:
    """What all calls of a product take, with half the interval."""
    if call is None:
        return "-"
    return _interval(TotalTime(one.count * call.median_ms, _times(one.count, call.ci95_ms)))


def _times(count: int, interval: tuple[float, ...] | None) -> tuple[float, ...] | None:
    return None if interval is None else tuple(count * bound for bound in interval)


def _interval(total: TotalTime) -> str:
    half = "" if total.ci95_ms is None else f" ± {(total.ci95_ms[1] - total.ci95_ms[0]) / 2:.2g}"
    return f"{total.ms:.{_WORST}g}{half}"


def _notes(found: Workload, top: int) -> list[str]:
    """The report in a line, and what is left out of the table."""
    lines = [f"Read as {found.source}: {found.calls} products of {found.shapes} shapes."]
    if found.shapes > top:
        lines[0] += f" The first {top} are shown: --top {found.shapes} shows all."
    lines += [f"Left out: {one.count} x {one.what}: {one.reason}." for one in found.skipped]
    if found.before is not None and found.after is not None:
        lines.append(f"{found.summary}: {_interval(found.before)} ms -> {_interval(found.after)} ms.")
        lines += sorted({f"{one.problem}: {one.reason}." for one in found.products[:top] if one.reason})
    else:
        lines.append(f"{found.summary}. --tune 60 measures and tunes them for a minute.")
    return lines
