"""tilewise show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from app.cli import render
from app.cli.drawing import chart_pictures, charts
from app.cli.drawing.pictures import Canvas, encoded
from app.cli.drawing.terminal import Protocol, picture_protocol
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
    no_pictures: Annotated[
        bool, typer.Option("--no-pictures", help="Draw with characters, though the terminal could show pictures.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Draw what a tune found: the ladder as bars, the best times over two parameters, and the roofline.

    A terminal that says it can show pictures, by Kitty's graphics or as sixels, is sent some.
    """
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
        protocol = None if no_pictures else picture_protocol(sys.stdin, sys.stdout)
        _draw(here, problem, kernel, device, Drawing(out, protocol))


@dataclass(frozen=True, slots=True)
class Drawing:
    """Where charts are drawn, and by which protocol pictures are shown there; None: by none."""

    out: Console
    protocol: Protocol | None

    def show(self, picture: Callable[[], Canvas]) -> None:
        """Show a picture where pictures are shown."""
        if self.protocol is not None:
            self.out.file.write(encoded(picture(), self.protocol))
            self.out.file.flush()


def _draw(here: Records, problem: Problem, kernel: str | None, device: str | None, drawing: Drawing) -> None:
    out, best = drawing.out, here.best(problem, device=device, match="exact")
    out.print(f"[bold]{problem}[/] on {best.device}")
    if times := charts.ladder_times(best):
        drawing.show(partial(chart_pictures.ladder, times))
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
        drawing.show(partial(chart_pictures.landscape, grid))
        out.print(charts.grid(grid))
        out.print(charts.grid_note())
    out.print("\n[bold]Roofline[/]: GFLOP/s over operations a byte")
    drawing.show(partial(chart_pictures.roofline, roof))
    if drawing.protocol is None:
        out.print(charts.roofline(roof), soft_wrap=True)
        out.print(charts.points_note(roof.points))
        return
    for one in roof.ceilings:
        out.print(charts.ceiling_text(one), soft_wrap=True)
    for name, (red, green, blue) in chart_pictures.kernel_colours(point.kernel for point in roof.points).items():
        out.print(f"  [rgb({red},{green},{blue})]■[/] {name}")
