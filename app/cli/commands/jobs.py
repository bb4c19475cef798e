"""tilewise jobs, watch, extend and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from app.cli import render
from app.cli.exit_codes import Exit
from app.cli.figures import config_text
from app.cli.options import Json, Quiet, Url, settings
from app.cli.progress import follow
from app.cli.session import Records, records
from app.errors import UnknownJob
from tilewise import Client, Job

SHORT: Final = 8  # characters of an id that people are shown; commands take any prefix that is of one job alone
_WHOLE: Final = 32
_PAGE: Final = 1000

State = Annotated[
    str | None, typer.Option(help="Only queued, running, cancelling, succeeded, failed, cancelled or expired ones.")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or its beginning.")]
MaybeJobId = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="A job's id, or its beginning; by default the newest job.")
]


def jobs(
    state: State = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="Jobs at most, the newest.")] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    out, err = render.consoles()
    with records(settings(), url, "tilewise jobs", err) as here:
        found = here.jobs(state=state, limit=limit)
    if as_json:
        render.print_json(found)
    elif found:
        out.print(job_table(found, datetime.now(UTC)))
    else:
        err.print("There are no jobs." if state is None else f"There are no {state} jobs.")


def watch(job: MaybeJobId = None, url: Url = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Follow a job to its end, by default the newest; Ctrl-C leaves it running."""
    out, err = render.consoles(quiet=quiet)
    with records(settings(), url, "tilewise watch", err) as here:
        found = newest(here) if job is None else find(here, job)
        if not found.ended and not isinstance(here, Client):
            message = f"Job {found.id[:SHORT]} is {found.state}, and no service runs: tilewise serve takes it up."
            render.consoles()[1].print(message)
            raise typer.Exit(Exit.FAILED)
        if isinstance(here, Client):
            found = follow(here, found, err)
    _tell(found, out, err, as_json)
    raise typer.Exit(Exit.OK if found.state == "succeeded" and not found.failures else Exit.FAILED)


def extend(
    job: JobId,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds more, for the whole job.")] = 20.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Give a tune that has not ended more time."""
    out, err = render.consoles()
    with records(settings(), url, "tilewise extend", err) as here:
        found = find(here, job)
        if not isinstance(here, Client):
            err.print(f"Job {found.id[:SHORT]} is {found.state}, and no service runs: tilewise serve takes it up.")
            raise typer.Exit(Exit.FAILED)
        found = here.extend(found.id, seconds)
    if as_json:
        render.print_json(found)
    else:
        out.print(f"Job {found.id[:SHORT]} has {seconds:g} s more.")


def cancel(job: JobId, url: Url = None, as_json: Json = False) -> None:
    """End a job; what it has measured stays."""
    out, err = render.consoles()
    with records(settings(), url, "tilewise cancel", err) as here:
        found = find(here, job)
        known = found.ended
        found = found if known else here.cancel(found.id)
    if as_json:
        render.print_json(found)
    elif known:
        out.print(f"Job {found.id[:SHORT]} had ended already: {found.state}.")
    else:
        ending = "" if found.ended else ": it ends within seconds"
        out.print(f"Job {found.id[:SHORT]} is {found.state if found.ended else 'cancelling'}{ending}.")


def find(here: Records, name: str) -> Job:
    """Give the job whose id begins so; raises UnknownJob where there is none, BadParameter if there are several."""
    if len(name) >= _WHOLE:
        return here.job(name)
    page = here.jobs(limit=_PAGE)
    found = [job for job in page if job.id.startswith(name)]
    while page.next:
        page = here.jobs(limit=_PAGE, cursor=page.next)
        found += [job for job in page if job.id.startswith(name)]
    if not found:
        raise UnknownJob(f"there is no job {name}; tilewise jobs lists those there are")
    if len(found) > 1:
        some = ", ".join(job.id[: max(SHORT, len(name) + 4)] for job in found[:4])
        raise typer.BadParameter(f"{len(found)} jobs begin with {name!r}, such as {some}: say more of the id")
    return found[0]


def newest(here: Records) -> Job:
    """Give the newest job, one that has not ended first; raises UnknownJob if there is none."""
    found = here.jobs(limit=_PAGE)
    if not found:
        raise UnknownJob("there are no jobs")
    return next((job for job in found if job.state == "running"), found[0])


def job_table(found: list[Job], now: datetime) -> Table:
    """The jobs, one a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("Job", "Kind", "State", "Trials", "Search (ms)", "Asked for", "Shapes"):
        table.add_column(name, overflow="fold", no_wrap=name != "Shapes")
    for job in found:
        best = job.progress.search_best_ms
        figures = str(job.progress.done), "" if best is None else f"~{best:.4g}", _age(job.created_at, now)
        table.add_row(job.id[:SHORT], job.kind, job.state, *figures, ", ".join(_shapes(job)))
    return table


def _shapes(job: Job) -> list[str]:
    """The shapes that an ended job tells of, each once."""
    problems = [*(winner.problem for winner in job.best), *(failure["problem"] for failure in job.failures)]
    return list(dict.fromkeys(map(str, problems)))


def _age(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    seconds = max(0.0, (now - moment).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _tell(job: Job, out: Console, err: Console, as_json: bool) -> None:
    if as_json:
        render.print_json(job)
        return
    out.print(f"Job {job.id[:SHORT]} {job.state}.")
    for winner in job.best:
        speed = "" if winner.median_ms is None else f", {winner.median_ms:.4g} ms"
        out.print(f"{winner.problem}: {winner.kernel} {config_text(winner.config)}{speed}")
    for failure in job.failures:
        err.print(f"[red]{failure.get('problem')}[/]: {reason_of(failure)}")
    if job.error:
        err.print(f"[red]{reason_of(job.error)}[/]")


def reason_of(error: Mapping[str, Any]) -> str:
    """The sentence of an error."""
    return str(error.get("error") or error.get("detail") or "no reason was given")
