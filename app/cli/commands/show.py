"""tilewise show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from app.cli import render
from app.cli.drawing import charts
from app.cli.options import (
    SHAPE,
    Batch,
    DeviceId,
    Dtype,
    Json,
    Precision,
    TransA,
    TransB,
    Url,
    settings,
    shapes_of,
    usage,
)
from app.cli.session import Records, open_for_devices
from app.errors import NotTuned
from tilewise import ClientError, Problem


def show(
    shape: Annotated[list[str], typer.Argument(metavar="SHAPE", help=f"{SHAPE}.")],
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    batch: Batch = None,
    kernel: Annotated[str | None, typer.Option(help="Whose grid; by default the fastest config's kernel.")] = None,
    device: DeviceId = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Draw what a tune found: the ladder as bars, the best times over two parameters, and the roofline."""
    with usage():
        found = shapes_of(shape, batch)
        if len(set(found)) != 1:
            raise typer.BadParameter("give one shape")
    problem = Problem(**asdict(found[0]), dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b)
    out, err = render.consoles()
    with open_for_devices(settings(), url, "tilewise show", err) as here:
        if as_json:
            best = here.best(problem, device=device, match="exact")
            grid = here.landscape(problem, kernel=kernel, device=device)
            roof = here.roofline(problem, points="trials", device=device)
            render.print_json({"best": best, "landscape": grid, "roofline": roof})
            return
        _draw(here, problem, kernel, device, out)


def _draw(here: Records, problem: Problem, kernel: str | None, device: str | None, out: Console) -> None:
    best = here.best(problem, device=device, match="exact")
    out.print(f"[bold]{problem}[/] on {best.device}")
    if times := charts.ladder_times(best):
        out.print(charts.bars(times))
    roof = here.roofline(problem, points="trials", device=device)
    try:
        grid = here.landscape(problem, kernel=kernel, device=device)
    except (NotTuned, ClientError) as error:
        if error.code != NotTuned.code:
            raise
        out.print(f"\n{error}")
    else:
        out.print(f"\n[bold]{grid.kernel}[/]: {grid.y} down, {grid.x} across")
        out.print(charts.grid(grid))
        out.print(charts.grid_note())
    out.print("\n[bold]Roofline[/]: GFLOP/s over operations a byte")
    out.print(charts.roofline(roof), soft_wrap=True)
    out.print(charts.points_note(roof.points))
