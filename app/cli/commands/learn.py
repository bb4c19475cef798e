"""tilewise learn: the ladder of lessons, measured on the device at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.syntax import Syntax

from app.cli import render
from app.cli.commands.tune import followed
from app.cli.exit_codes import Exit
from app.cli.figures import config_text
from app.cli.options import SHAPE, DeviceId, Json, Quiet, Url, settings, shape_of, usage
from app.cli.session import Session, session
from tilewise import LessonRun, Lessons, LessonStep, Shape
from tilewise.arguments import TuneArguments

_CLOSE: Final = 0.02  # of a time: two that are this close are not told apart


def learn(
    shape: Annotated[list[str] | None, typer.Argument(metavar="[SHAPE]", help=f"{SHAPE}; by default 512.")] = None,
    rung: Annotated[int | None, typer.Option(min=1, max=14, help="Only this rung, beside the one below.")] = None,
    change: Annotated[
        str | None, typer.Option(help="Values to change, such as TILE=8, in place of the proposed.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure in.")] = 60.0,
    no_diff: Annotated[bool, typer.Option("--no-diff", help="Leave out what changes in the source.")] = False,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Climb from naive to wgmma on your device: each rung's idea, what changes, what it gains and why, what to try.

    Every rung is compiled, verified and measured by a job; none ever serves a product.
    """
    with usage():
        wanted = shape_of(shape or ["512"], None)
        changes = changes_of(change)
    out, err = render.consoles(quiet=quiet)
    with session(settings(), url, "tilewise learn", err) as here:
        numbers = range(1, 15) if rung is None else range(max(1, rung - 1), rung + 1)
        failed = measure(here, here.lessons(wanted, change=changes, device=device), numbers, seconds, err)
        found = here.lessons(wanted, change=changes, device=device)
    if as_json:
        render.print_json(found)
    else:
        show(found, list(numbers) if rung is None else [rung], out, with_diff=not no_diff)
    raise typer.Exit(Exit.FAILED if failed else Exit.OK)


def changes_of(text: str | None) -> dict[str, int] | None:
    """Values by parameter, of TILE=8,PAD=0; raises ValueError for anything else."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and value.strip().isdigit() for name, _, value in pairs):
        raise ValueError(f"a change is such as TILE=8 or TILE=8,PAD=0, got {text!r}")
    return {name.strip(): int(value) for name, _, value in pairs}


def measure(here: Session, ladder: Lessons, numbers: Sequence[int], seconds: float, err: Console) -> bool:
    """Have the rungs that run here measured, a job for each dtype; whether a job failed."""
    rungs = [step for step in ladder.lessons if step.number in numbers and step.run is not None]
    failed = False
    for dtype in dict.fromkeys(step.problem.dtype for step in rungs):
        own = [step for step in rungs if step.problem.dtype == dtype]
        arguments = TuneArguments(
            (Shape(own[0].problem.m, own[0].problem.n, own[0].problem.k),),
            dtype=dtype,
            device=ladder.device,
            kernels=tuple(step.kernel for step in own),
            strategy="exhaustive",
            seconds=seconds * len(own) / len(rungs),
        )
        failed = followed(here, here.start_tune(arguments), err).state != "succeeded" or failed
    return failed


def show(ladder: Lessons, numbers: Sequence[int], out: Console, with_diff: bool) -> None:
    """The rungs, each beside the one below it."""
    steps = {step.number: step for step in ladder.lessons}
    out.print(ladder.advice)
    for number in numbers:
        step, below = steps[number], steps.get(number - 1)
        out.print(f"\n[bold]{step.number}. {step.title}[/]  [dim]{step.kernel} on {ladder.device}[/]")
        out.print(step.idea, soft_wrap=False)
        if with_diff and step.diff:
            out.print(Syntax(step.diff, "diff", background_color="default", word_wrap=True))
        if step.run is None:
            out.print(f"It does not run here: {step.refusal}.")
        else:
            out.print(render.fact_table(facts(step, step.run, below)))
    if not ladder.device.startswith("cuda"):
        out.print(
            "\n[dim]Banks and sectors are a GPU's: a processor has caches in their place, and gains by others.[/]"
        )


def facts(step: LessonStep, run: LessonRun, below: LessonStep | None) -> dict[str, str]:
    """A rung's figures in words: times, why it gains, and what to change next."""
    before = below.run if below is not None else None
    found = {
        "problem": f"{step.problem}, {config_text(run.config)}",
        "predicted": f"{run.predicted_ms:.3g} ms by the model, which knows no caches",
        "measured": measured(run, before),
        "bytes": compared_bytes(run, before),
        "banks": banks(run),
    }
    if run.occupancy is not None:
        held = run.occupancy
        found["occupancy"] = f"{held.fraction:.0%} of an SM's threads, limited by {held.limited_by}"
    found["why"] = why(run, before)
    if step.changed is not None:
        found["try next"] = tried(step, run, step.changed)
    return {name: text for name, text in found.items() if text}


def measured(run: LessonRun, before: LessonRun | None) -> str:
    """The time, and how many times as fast it is as the rung below."""
    if run.measured_ms is None:
        return "not yet"
    if before is None or before.measured_ms is None:
        return f"{run.measured_ms:.3g} ms"
    ratio = before.measured_ms / run.measured_ms
    return f"{run.measured_ms:.3g} ms, {ratio:.2f} times as fast as the rung below ({before.measured_ms:.3g} ms)"


def compared_bytes(run: LessonRun, before: LessonRun | None) -> str:
    """The bytes that blocks read from global memory, beside the rung below."""
    said = f"{run.bytes_read:,} read from global memory, {run.intensity:.3g} operations a byte"
    if before is not None and before.bytes_read != run.bytes_read:
        said += f" (below: {before.bytes_read:,})"
    return said


def banks(run: LessonRun) -> str:
    """The accesses of shared memory that take more turns than they need."""
    shared = [one for one in run.accesses if one.memory == "shared"]
    slow = [f"{one.what} {one.taken} turns for {one.least}" for one in shared if one.taken > one.least]
    return ", ".join(slow) or ("no conflicts" if shared else "")


def why(run: LessonRun, before: LessonRun | None) -> str:
    """What of the model changed from the rung below, in a sentence; what it does not see is said too."""
    if before is None:
        return ""
    reasons = []
    if run.bytes_read < before.bytes_read:
        reasons.append(f"blocks read {before.bytes_read / run.bytes_read:.3g} times fewer bytes")
    if _excess(run, "global") < _excess(before, "global"):
        reasons.append("a warp's loads of global memory take fewer sectors")
    if _excess(run, "shared") < _excess(before, "shared"):
        reasons.append("fewer threads meet on a bank of shared memory")
    if run.occupancy and before.occupancy and run.occupancy.fraction > before.occupancy.fraction:
        reasons.append("more threads share a multiprocessor")
    gained = before.measured_ms and run.measured_ms and before.measured_ms > run.measured_ms * (1 + _CLOSE)
    found = ", ".join(reasons) or "bytes, conflicts and occupancy are as below: the gain is in instructions or waiting"
    if before.measured_ms and run.measured_ms and not gained:
        return f"{found}; here that gains nothing"
    return found


def _excess(run: LessonRun, memory: str) -> float:
    """How many times the turns or sectors that would do a warp's accesses take together."""
    own = [one for one in run.accesses if one.memory == memory]
    return sum(one.taken for one in own) / sum(one.least for one in own) if own else 1.0


def tried(step: LessonStep, run: LessonRun, changed: LessonRun) -> str:
    """What to change, what the model says of it, and its time if it was measured."""
    own: Mapping[str, int] = {name: changed.config[name] for name in step.change if name in changed.config}
    words = f"{config_text(own)}: {banks(changed) or 'no shared memory'}, {changed.bytes_read:,} bytes"
    if changed.measured_ms is not None and run.measured_ms is not None:
        words += f", {changed.measured_ms:.3g} ms ({changed.measured_ms / run.measured_ms:.2f} times this)"
    command = f"tilewise learn {step.problem.m}x{step.problem.n}x{step.problem.k} --rung {step.number}"
    return f"{words}; other values: {command} --change {config_text(own).replace(' ', ',')}"
