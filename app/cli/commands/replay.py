"""tilewise export and replay."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated

import typer

from app.cli import render
from app.cli.commands.jobs import JobId, find
from app.cli.exit_codes import Exit
from app.cli.options import Json, Output, Quiet, Strategy, Url, settings, usage
from app.cli.session import records


def export(
    job: JobId,
    output: Output,
    form: Annotated[str, typer.Option("--format", help="replay.")] = "replay",
    url: Url = None,
    quiet: Quiet = False,
) -> None:
    """Write every trial of a job to a file, to be replayed with no device."""
    with usage():
        if form != "replay":
            raise ValueError(f"the format is replay, got {form!r}")
    err = render.consoles(quiet=quiet)[1]
    with records(settings(), url, "tilewise export", err) as here:
        job_id = find(here, job).id
        text = here.recording(job_id)
    if not text:
        render.consoles()[1].print(f"Job {job_id} has no trials that could be replayed.")
        raise typer.Exit(Exit.FAILED)
    content = text.encode()
    if str(output) == "-":
        print(text, end="")
        return
    output.write_bytes(gzip.compress(content, mtime=0) if output.suffix == ".gz" else content)
    err.print(f"{output} holds {text.count(chr(10))} lines.")


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A recording.")],
    strategy: Strategy = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is random.")] = 0,
    trials: Annotated[int | None, typer.Option(min=1, help="Evaluations at most; by default no limit.")] = None,
    as_json: Json = False,
) -> None:
    """Tune on recordings as on a device, and say how near the best of all configs the chosen one is."""
    from app.cli.commands import replay_report  # noqa: PLC0415 - the other commands need not load the tuner

    with usage():
        results = replay_report.play(file, strategy, seed, trials)
    if as_json:
        render.print_json(results)
    else:
        render.consoles()[0].print(replay_report.table(results))
