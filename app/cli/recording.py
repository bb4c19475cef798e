"""tilewise export and tilewise replay: a job's trials as a recording, and a tune played on one with no device."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated

import typer

from app.cli import show
from app.cli.exits import Exit
from app.cli.options import Json, Url, usage
from app.cli.session import session
from app.settings import Settings


def export(
    job_id: Annotated[str, typer.Argument(metavar="JOB_ID", help="A tune job's id.")],
    output: Annotated[Path, typer.Option("-o", "--output", dir_okay=False, help="The file; .gz compresses it.")],
    form: Annotated[str, typer.Option("--format", help="replay.")] = "replay",
    url: Url = None,
) -> None:
    """Write every trial of a job to a file, to be replayed with no device."""
    with usage():
        if form != "replay":
            raise ValueError(f"the format is replay, got {form!r}")
    out, err = show.consoles()
    with session(Settings(), url, "tilewise export", err) as here:
        here.job(job_id)  # refused where there is no such job
        text = here.recording(job_id)
    if not text:
        err.print(f"Job {job_id} has no trials that could be replayed.")
        raise typer.Exit(Exit.FAILED)
    content = text.encode()
    output.write_bytes(gzip.compress(content, mtime=0) if output.suffix == ".gz" else content)
    out.print(f"{output} holds {text.count(chr(10))} lines.")


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A recording.")],
    strategy: Annotated[str, typer.Option(help="auto, exhaustive, genetic or random.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is random.")] = 0,
    trials: Annotated[int | None, typer.Option(min=1, help="Evaluations at most; by default no limit.")] = None,
    as_json: Json = False,
) -> None:
    """Tune on recordings as on a device, and say how near the best of all configs the chosen one is."""
    from app.cli import playing  # noqa: PLC0415 - the other commands need not load the tuner

    with usage():
        results = playing.play(file, strategy, seed, trials)
    if as_json:
        show.print_json(results)
    else:
        show.consoles()[0].print(playing.table(results))
