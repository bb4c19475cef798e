"""tilewise tune, best and bench."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from app.cli import figures, render
from app.cli.commands.jobs import SHORT, reason_of
from app.cli.exit_codes import Exit
from app.cli.options import (
    SHAPE,
    Batch,
    DeviceId,
    Dtype,
    GainPercent,
    Json,
    Kernels,
    Match,
    Precision,
    Quiet,
    Strategy,
    TransA,
    TransB,
    Url,
    settings,
    shape_of,
    shapes_of,
    usage,
)
from app.cli.progress import follow
from app.cli.session import Records, Session, open_for_devices, session
from tilewise import Best, Client, Job, Problem
from tilewise.arguments import TuneArguments


def tune(
    shapes: Annotated[list[str], typer.Argument(metavar="SHAPE...", help=f"{SHAPE}; any number of them.")],
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    batch: Batch = None,
    kernels: Kernels = None,
    strategy: Strategy = "auto",
    trials: Annotated[int | None, typer.Option(min=1, help="The whole job's trials; by default 64 a kernel.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="The whole job's time; by default 20 a shape.")] = None,
    gain_percent: GainPercent = None,
    retune: Annotated[bool, typer.Option("--retune", help="Measure anew what is known already.")] = False,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the best config of each shape, and compare it with naive and the vendor's library."""
    with usage():
        wanted = list(dict.fromkeys(shapes_of(shapes, batch)))
    kind: dict[str, Any] = {"dtype": dtype, "precision": precision, "trans_a": trans_a, "trans_b": trans_b}
    err = render.consoles(quiet=quiet)[1]
    with session(settings(), url, "tilewise tune", err) as here:
        arguments = TuneArguments(
            tuple(wanted),
            **kind,
            device=device,
            kernels=tuple(kernels.split(",")) if kernels else None,
            strategy=strategy,
            trials=trials,
            seconds=seconds,
            gain_percent=gain_percent,
            retune=retune,
        )
        job = here.start_tune(arguments)
        known = job.ended
        job = followed(here, job, err)
        bests = _bests(here, job, [Problem(**asdict(each), **kind) for each in wanted], device)
    _report(job, bests, known, as_json)
    raise typer.Exit(Exit.OK if job.state == "succeeded" and not job.failures else Exit.FAILED)


def bench(
    shapes: Annotated[list[str], typer.Argument(metavar="SHAPE...", help=f"{SHAPE}; any number of them.")],
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    batch: Batch = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="The whole job's time; by default 20 a shape.")] = None,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure now, and search nothing: the best config known, the untuned default, naive, tiled, the vendor's library.

    They take turns in one round; what is told of the shape from then on is what was seen.
    """
    with usage():
        wanted = list(dict.fromkeys(shapes_of(shapes, batch)))
    kind: dict[str, Any] = {"dtype": dtype, "precision": precision, "trans_a": trans_a, "trans_b": trans_b}
    err = render.consoles(quiet=quiet)[1]
    with session(settings(), url, "tilewise bench", err) as here:
        arguments = TuneArguments(tuple(wanted), **kind, device=device, strategy="known", seconds=seconds)
        job = followed(here, here.start_tune(arguments), err)
        bests = _bests(here, job, [Problem(**asdict(each), **kind) for each in wanted], device)
    _report(job, bests, known=False, as_json=as_json)
    raise typer.Exit(Exit.OK if job.state == "succeeded" and not job.failures else Exit.FAILED)


def followed(here: Session, job: Job, err: Console) -> Job:
    """The job at its end; says its id, where it can be followed, and what becomes of it at Ctrl-C."""
    if job.ended:
        return job
    short = job.id[:SHORT]
    where = f" --url {here.url}" if isinstance(here, Client) else ""
    ways = f": tilewise watch {short}{where}, tilewise cancel {short}{where}" if where else ""
    try:
        err.print(f"[dim]Job {job.id}{ways}[/]", soft_wrap=True)
        return follow(here, job, err)
    except KeyboardInterrupt:
        kept = f"goes on there: tilewise cancel {short}{where} ends it"
        left = f"is kept, and the next tune or serve on this database takes it up: tilewise cancel {short} ends it"
        render.consoles()[1].print(f"stopped; job {short} {kept if where else left}", soft_wrap=True)
        raise typer.Exit(Exit.INTERRUPTED) from None


def _bests(here: Records, job: Job, problems: list[Problem], device: str | None) -> list[Best]:
    """What the job's shapes are answered with now, those that failed left out."""
    if job.state != "succeeded":
        return []
    answers = (here.best(problem, device=device) for problem in problems)
    return [answer for answer in answers if answer.match == "exact"]


def _report(job: Job, bests: list[Best], known: bool, as_json: bool) -> None:
    if as_json:
        render.print_json({"job": job, "best": bests})
        return
    out, err = render.consoles()
    if known and job.state == "succeeded":
        out.print("All of it had been tuned before; --retune measures it anew.")
    if bests:
        out.print(figures.comparison(bests))
        out.print(figures.comparison_note(bests))
    for failure in job.failures:
        err.print(f"[red]{failure.get('problem')}[/]: {reason_of(failure)}")
    if job.state != "succeeded" and not job.failures:
        err.print(f"The job {job.state}: {reason_of(job.error or {})}.")


def best(
    shape: Annotated[list[str], typer.Argument(metavar="SHAPE", help=f"{SHAPE}.")],
    batch: Batch = None,
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    device: DeviceId = None,
    match: Match = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Say which config is best, as far as is known: exact, stale, nearest, or the untuned default."""
    with usage():
        wanted = shape_of(shape, batch)
    out, err = render.consoles()
    problem = Problem(**asdict(wanted), dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b)
    with open_for_devices(settings(), url, "tilewise best", err) as here:
        found = here.best(problem, device=device, match=match)
    if as_json:
        render.print_json(found)
    else:
        out.print(render.answer(found))
