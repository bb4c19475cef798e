"""tilewise tune and tilewise best."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli import show
from app.cli.exits import Exit
from app.cli.follow import follow
from app.cli.options import Batch, DeviceId, Dtype, Gain, Json, Precision, TransA, TransB, Url, usage
from app.cli.session import Session, session
from app.cli.shapes import shapes_of
from app.client import Best, Job, Problem
from app.settings import Settings


def tune(
    shapes: Annotated[list[str], typer.Argument(metavar="SHAPE...", help="M N K, or MxNxK, any number of them.")],
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    batch: Batch = 1,
    kernels: Annotated[str | None, typer.Option(help="Only these, with commas; by default every one.")] = None,
    strategy: Annotated[str, typer.Option(help="auto, exhaustive, genetic or random.")] = "auto",
    trials: Annotated[int | None, typer.Option(min=1, help="The whole job's trials; by default 64 a kernel.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="The whole job's time; by default 20 a shape.")] = None,
    gain: Gain = None,
    retune: Annotated[bool, typer.Option("--retune", help="Measure anew what is known already.")] = False,
    device: DeviceId = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Find the best config of each shape, and compare it with naive and the vendor's library."""
    with usage():
        wanted = list(dict.fromkeys(shapes_of(shapes, batch)))
    with session(Settings(), url, "tilewise tune", show.consoles()[1]) as here:
        job = here.tune(
            wanted,
            dtype=dtype,
            precision=precision,
            trans_a=trans_a,
            trans_b=trans_b,
            device=device,
            kernels=kernels.split(",") if kernels else None,
            strategy=strategy,
            trials=trials,
            seconds=seconds,
            gain=gain,
            retune=retune,
        )
        known, kind = job.ended, (dtype, precision, trans_a, trans_b)
        job = _followed(here, job, url)
        bests = _bests(here, job, [Problem(each.m, each.n, each.k, batch, *kind) for each in wanted], device)
    _report(job, bests, known, as_json)
    raise typer.Exit(Exit.OK if job.state == "succeeded" and not job.failures else Exit.FAILED)


def _followed(here: Session, job: Job, url: str | None) -> Job:
    _, err = show.consoles()
    try:
        return follow(here, job, err)
    except KeyboardInterrupt:
        kept = "goes on there" if url else "is kept: it resumes with the next command or service on this database"
        err.print(f"Interrupted; job {job.id} {kept}.")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _bests(here: Session, job: Job, problems: list[Problem], device: str | None) -> list[Best]:
    """What the job's shapes are answered with now, those that failed left out."""
    if job.state != "succeeded":
        return []
    answers = (best_of(here, problem, device, exact=False) for problem in problems)
    return [answer for answer in answers if answer.match == "exact"]


def best_of(here: Session, problem: Problem, device: str | None, *, exact: bool) -> Best:
    """Ask for one problem's best config."""
    return here.best_config(
        problem.m,
        problem.n,
        problem.k,
        batch=problem.batch,
        dtype=problem.dtype,
        precision=problem.precision,
        trans_a=problem.trans_a,
        trans_b=problem.trans_b,
        device=device,
        exact=exact,
    )


def _report(job: Job, bests: list[Best], known: bool, as_json: bool) -> None:
    if as_json:
        show.print_json({"job": job, "best": bests})
        return
    out, err = show.consoles()
    if known and job.state == "succeeded":
        out.print("All of it had been tuned before; --retune measures it anew.")
    if bests:
        out.print(show.comparison(bests))
        out.print(show.comparison_note(bests))
    for failure in job.failures:
        err.print(f"[red]{failure.get('problem')}[/]: {failure.get('error')}")
    if job.state != "succeeded" and not job.failures:
        err.print(f"The job {job.state}: {(job.error or {}).get('error', 'no reason was given')}.")


def best(
    m: Annotated[int, typer.Argument(min=1, metavar="M", help="Rows of C.")],
    n: Annotated[int, typer.Argument(min=1, metavar="N", help="Columns of C.")],
    k: Annotated[int, typer.Argument(min=1, metavar="K", help="The inner dimension.")],
    batch: Batch = 1,
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    device: DeviceId = None,
    exact: Annotated[bool, typer.Option("--exact", help="Exit 3 where exactly this was never tuned.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Say which config is best, as far as is known: exact, stale, nearest, or the untuned default."""
    out, err = show.consoles()
    with session(Settings(), url, "tilewise best", err) as here:
        found = best_of(here, Problem(m, n, k, batch, dtype, precision, trans_a, trans_b), device, exact=exact)
    if as_json:
        show.print_json(found)
    else:
        out.print(show.answer(found))
