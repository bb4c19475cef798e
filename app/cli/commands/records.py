"""tilewise trials, bests and misses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from app.cli import render
from app.cli.commands.jobs import MaybeJobId, find
from app.cli.figures import config_text, median_text
from app.cli.options import (
    DeviceId,
    Dtype,
    DtypeFilter,
    Json,
    Precision,
    TransA,
    TransB,
    Url,
    settings,
    shape_of,
    usage,
)
from app.cli.session import records
from tilewise import Best, Miss, Page, Problem, Trial

Limit = Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on after the page that named it.")]


def trials(
    job: MaybeJobId = None,
    kernel: Annotated[str | None, typer.Option(help="Only this kernel's; vendor is the vendor's library.")] = None,
    state: Annotated[str | None, typer.Option(help="Only measured or rejected ones.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List the configs that were tried, of one job or of all, oldest first."""
    out, err = render.consoles()
    with records(settings(), url, "tilewise trials", err) as here:
        job_id = None if job is None else find(here, job).id
        found = here.trials(job_id=job_id, kernel=kernel, state=state, cursor=cursor, limit=limit)
    if as_json:
        render.print_json(found)
        return
    out.print(_trial_table(found)) if found else err.print("There are no such trials.")
    _tell_next(found, err)


def bests(
    device: DeviceId = None,
    dtype: DtypeFilter = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List the best known config of every problem that was tuned, newest first."""
    out, err = render.consoles()
    with records(settings(), url, "tilewise bests", err) as here:
        found = here.bests(device=device, dtype=dtype, cursor=cursor, limit=limit)
    if as_json:
        render.print_json(found)
    else:
        out.print(_best_table(found)) if found else err.print("Nothing has been tuned yet: tilewise tune SHAPE.")
        _tell_next(found, err)


def misses(
    dismiss: Annotated[str | None, typer.Option(metavar="SHAPE", help="Forget that this one was asked for.")] = None,
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    device: DeviceId = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List the shapes that were asked for and are not tuned, those asked for most first; or dismiss one before."""
    with usage():
        shape = None if dismiss is None else shape_of([dismiss])
    out, err = render.consoles()
    with records(settings(), url, "tilewise misses", err) as here:
        if shape is not None:
            here.dismiss_miss(
                Problem(**asdict(shape), dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b),
                device=device,
            )
        found = here.misses(device=device, cursor=cursor, limit=limit)
    if as_json:
        render.print_json(found)
    else:
        out.print(_miss_table(found)) if found else err.print("Every shape that was asked for is tuned.")
        _tell_next(found, err)


def _tell_next(page: Page[Any], err: Console) -> None:
    if page.next:
        err.print(f"There are more: --cursor {page.next} goes on from here.", soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        right = name in {"Id", "Time (ms)", "GFLOP/s", "Times"}
        table.add_column(name, overflow="fold", justify="right" if right else "left", no_wrap=name != "Config")
    return table


def _trial_table(found: Sequence[Trial]) -> Table:
    table = _table("Id", "Problem", "Kernel", "Config", "Round", "Time (ms)", "Told")
    for one in found:
        time = "" if one.timing is None else median_text(one.timing)
        told = "" if one.stage is None else f"{one.stage}: {one.reason}"
        config = config_text(one.config)
        table.add_row(str(one.id), str(one.problem), one.kernel, config, one.round, time, told)
    return table


def _best_table(found: Sequence[Best]) -> Table:
    table = _table("Problem", "Device", "Kernel", "Config", "Time (ms)", "GFLOP/s", "Match")
    for one in found:
        time = "" if one.timing is None else median_text(one.timing)
        speed = "" if one.gflops is None else f"{one.gflops:.1f}"
        config = config_text(one.config)
        table.add_row(str(one.problem), one.device, one.kernel, config, time, speed, one.match)
    return table


def _miss_table(found: Sequence[Miss]) -> Table:
    table = _table("Problem", "Times", "Match", "Device model")
    for one in found:
        table.add_row(str(one.problem), str(one.count), one.match, render.model_text(one.device_model))
    return table
