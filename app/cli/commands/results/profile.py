"""tilewise profile: what counters, drivers and the model say of a problem's kernels, side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from app.cli import render
from app.cli.commands.jobs import reason_of
from app.cli.commands.tune import followed
from app.cli.exit_codes import Exit
from app.cli.figures import config_text
from app.cli.options import (
    SHAPE,
    Batch,
    DeviceId,
    Dtype,
    Json,
    Precision,
    Quiet,
    TransA,
    TransB,
    Url,
    settings,
    shape_of,
    usage,
)
from app.cli.session import open_for_devices, session
from tilewise import KernelProfile, Problem, Profile, ProfileFigure

# How a figure is marked that no counter and no timer has said.
_MARKS: Final = {"driver": " d", "model": " m"}
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_WORDS: Final = {"ncu": "Nsight Compute", "perf": "the processor's counters"}


def profile(
    shape: Annotated[list[str], typer.Argument(metavar="SHAPE", help=f"{SHAPE}.")],
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    batch: Batch = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Show the newest profile that is stored; make none.")
    ] = False,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Profile naive, tiled, the winner and the vendor's library by hardware counters, where these may be read.

    What no counter says is the driver's word or the model's, marked so, with the reason.
    """
    with usage():
        sizes = shape_of(shape, batch)
    problem = Problem(**asdict(sizes), dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b)
    out, err = render.consoles(quiet=quiet)
    if stored:
        with open_for_devices(settings(), url, "tilewise profile", err) as records:
            found = records.profiles(problem, device=device, limit=1)
    else:
        with session(settings(), url, "tilewise profile", err) as here:
            job = followed(here, here.profile(problem, device=device), err)
            found = here.profiles(problem, job_id=job.id, limit=1)
            if job.error:
                err.print(reason_of(job.error))
    if not found:
        err.print(f"No profile of {problem} is stored.")
        raise typer.Exit(Exit.NOT_TUNED if stored else Exit.FAILED)
    if as_json:
        render.print_json(found[0])
    else:
        show(found[0], out)


def show(found: Profile, out: Console) -> None:
    """The figures in a column a kernel, the findings, and why counters are missing."""
    out.print(f"[bold]{found.problem}[/] on {found.device}, {found.created_at:%Y-%m-%d %H:%M}")
    out.print(table(found))
    out.print(notes(found), soft_wrap=True)
    for sentence in found.findings:
        out.print(f"- {sentence}", soft_wrap=True)


def table(found: Profile) -> Table:
    """A row a figure: each kernel's value with the mark of its source, the model's and the article's beside it."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    grid.add_column("Figure", no_wrap=True)
    for one in found.kernels:
        grid.add_column(f"{one.role}\n{one.kernel if one.role != one.kernel else ''}", justify="right")
    for name in dict.fromkeys(figure.name for one in found.kernels for figure in one.figures):
        grid.add_row(name.replace("_", " "), *(cell(one, name) for one in found.kernels))
    grid.add_row("config", *(config_text(one.config).replace(",", " ") for one in found.kernels))
    return grid


def cell(one: KernelProfile, name: str) -> str:
    """A figure's value and mark; below it what the model predicts and what the article found, where they say it."""
    figure = one.figure(name)
    if figure is None:
        return ""
    lines = ["-" if figure.value is None else number(figure.value) + _MARKS.get(figure.source, "")]
    if figure.predicted is not None and figure.source != "model":
        lines.append(f"[dim]model {number(figure.predicted)}[/]")
    if figure.article is not None:
        lines.append(f"[dim]A40 {number(figure.article)}[/]")
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits, with a prefix from a thousand on."""
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if abs(value) >= size), (1.0, ""))
    return f"{value / size:.3g}{prefix}"


def notes(found: Profile) -> str:
    """What the marks mean, which counters there were, and why others are missing."""
    figures: list[ProfileFigure] = [figure for one in found.kernels for figure in one.figures]
    counters = [words for source, words in _WORDS.items() if any(figure.source == source for figure in figures)]
    reasons = list(dict.fromkeys(figure.reason for figure in figures if figure.reason))
    marks = "d by the driver, m by the model, - nobody; A40: the articles', at 2048; counted"
    lines = [f"{marks}: {', '.join(counters) or 'nothing'}."]
    lines += [f"Not counted: {reason}." for reason in reasons]
    lines += [f"{one.role}: not profiled: {one.refusal}." for one in found.kernels if one.refusal]
    return "\n".join(lines)
