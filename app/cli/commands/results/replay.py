"""tilewise replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli import render
from app.cli.options import Json, Strategy, usage


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A recording.")],
    strategy: Strategy = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is random.")] = 0,
    trials: Annotated[int | None, typer.Option(min=1, help="Evaluations at most; by default no limit.")] = None,
    as_json: Json = False,
) -> None:
    """Tune on recordings as on a device, and say how near the best of all configs the chosen one is."""
    from app.cli.commands.results import replay_report  # noqa: PLC0415 - the other commands need not load the tuner

    with usage():
        results = replay_report.play(file, strategy, seed, trials)
    if as_json:
        render.print_json(results)
    else:
        render.consoles()[0].print(replay_report.table(results))
