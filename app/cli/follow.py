"""A job's progress, live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from app.cli.session import Session
from app.client import Event, Job


def follow(here: Session, job: Job, console: Console) -> Job:
    """Show the job's progress until its end, and give it as it then stands."""
    if job.ended:
        return job
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("waiting for the device".ljust(32), total=None, best="", left="")
        for event in here.events(job.id):
            _apply(bar, task, event)
    return here.job(job.id)


def _apply(bar: Progress, task: TaskID, event: Event) -> None:
    data = event.data
    if event.name == "trial":
        bar.update(task, description=f"{_shape(data)} {data.get('kernel', '')}".ljust(32))
        return
    if event.name == "end":
        # A job ends early where its budget is spent: what it did is then all there was to do.
        bar.update(task, total=bar.tasks[0].completed, description=str(data.get("state", "ended")).ljust(32), left="")
        return
    if data.get("phase") == "finals":
        bar.update(task, description="finals: the fastest once more".ljust(32))
    best = data.get("best_ms")
    fastest = f"fastest {best:.4g} ms" if best else ""
    seconds = data.get("eta_seconds")
    left = "" if seconds is None else f"{seconds:.0f} s left"
    bar.update(task, completed=data.get("done", 0), total=data.get("total") or None, best=fastest, left=left)


def _shape(data: Mapping[str, Any]) -> str:
    problem = data.get("problem", "")
    if isinstance(problem, str):
        return problem.rpartition("/")[2].removeprefix("1x")
    return "x".join(str(problem.get(name)) for name in "mnk")
