"""tilewise check: what has become slower than a bundle says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from app.cli import render
from app.cli.commands.jobs import reason_of
from app.cli.commands.results.interchange import unpacked
from app.cli.commands.tune import followed
from app.cli.exit_codes import Exit
from app.cli.options import DeviceId, Json, Quiet, Url, readable, settings, usage
from app.cli.session import Session, session
from app.errors import InvalidFile
from app.interchange import bundle
from app.interchange.results import BestResult
from tilewise import Best, Device, Job, Problem, Timing
from tilewise.arguments import TuneArguments

SLOWER: Final = "slower"
FAILED: Final = "failed"
_DIGITS: Final = 4  # of a time
_TOLERANCE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%?")


@dataclass(frozen=True, slots=True)
class ShapeCheck:
    """One problem of a bundle: what it took then, what it takes now, and whether it is slower, same, faster or failed.

    It is slower where now's median is above then's by more than the tolerance, and both 95 % intervals say so too.
    """

    problem: Problem
    then_ms: float
    verdict: str
    now: Timing | None = None
    kernel: str | None = None
    change_percent: float | None = None
    reason: str | None = None


@dataclass(slots=True)
class _Measured:
    """What is answered now, by problem, and why the others failed."""

    bests: dict[Problem, Best] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)


def check(
    against: Annotated[
        Path, typer.Option("--against", metavar="BUNDLE", callback=readable, help="What tilewise export wrote.")
    ],
    tolerance: Annotated[str, typer.Option(help="How much slower a problem may be, in per cent.")] = "3%",
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="The time of one pass over all; by default 20 a problem.")
    ] = None,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a bundle's winners again, and fail if one has become slower: a check for CI.

    Each is measured beside what is known here, the untuned default and the vendor's library; what looks slower is
    measured a second time. The bundle is imported for as long as that takes.
    """
    with usage():
        allowed, data = _fraction(tolerance), unpacked(against)
        recorded = _bests(data)
    out, err = render.consoles(quiet=quiet)
    with session(settings(), url, "tilewise check", err) as here:
        with usage():
            then = _of_device(recorded, here.devices(), device)
        imported = here.import_results(data, "bundle").imported.id
        try:
            now = _measured(here, then, seconds, device, err)
            again = {one: then[one] for one in then if _compared(one, then[one], now, allowed).verdict == SLOWER}
            second = _measured(here, again, seconds, device, err) if again else _Measured()
        finally:
            here.delete_import(imported)
    found = [_compared(one, then[one], second if one in second.bests else now, allowed) for one in then]
    if as_json:
        render.print_json({"tolerance_percent": 100 * allowed, "shapes": found, "jobs": [*now.jobs, *second.jobs]})
    else:
        out.print(_table(found))
        err.print(_summary(found, allowed), soft_wrap=True)
    raise typer.Exit(Exit.FAILED if any(one.verdict in {SLOWER, FAILED} for one in found) else Exit.OK)


def _fraction(text: str) -> float:
    """3%, 3 or 0.5 % as a fraction; raises ValueError."""
    found = _TOLERANCE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a tolerance is per cent, such as 3%, got {text}")
    return float(found[1]) / 100


def _bests(data: bytes) -> Sequence[BestResult]:
    """The bests of a bundle; raises ValueError for what is none, or has none."""
    try:
        bests = bundle.read(data.decode()).bests
    except (InvalidFile, UnicodeDecodeError) as error:
        raise ValueError(f"the file is no bundle: {error}") from error
    if not bests:
        raise ValueError("the bundle has no best: tilewise export -o FILE writes all that are stored")
    return bests


def _of_device(bests: Iterable[BestResult], devices: Sequence[Device], device: str | None) -> dict[Problem, BestResult]:
    """The bests of the device that is checked, by problem; raises ValueError if there is none."""
    chosen = [one for one in devices if device in {None, one.id}][:1]
    names = {name for one in chosen for name in (one.model, one.name)}
    found = {Problem(**asdict(one.problem)): one for one in bests if one.device in names}
    if not found:
        theirs = ", ".join(sorted({one.device for one in bests}))
        raise ValueError(f"the bundle is of {theirs}, and {chosen[0].id if chosen else device} is none of these")
    return found


def _measured(
    here: Session, then: dict[Problem, BestResult], seconds: float | None, device: str | None, err: Console
) -> _Measured:
    """Measure what is known of problems, in a job for each kind of them."""
    kinds = dict[tuple[Any, ...], list[Problem]]()
    for one in then:
        kinds.setdefault((one.dtype, one.precision, one.trans_a, one.trans_b), []).append(one)
    measured = _Measured()
    for kind, problems in kinds.items():
        share = None if seconds is None else seconds * len(problems) / len(then)
        shapes = tuple(one.shape for one in problems)
        arguments = replace(TuneArguments(shapes, *kind), device=device, strategy="known", seconds=share)
        job = followed(here, here.start_tune(arguments), err)
        measured.jobs.append(job)
        failed = {str(one.get("problem")): reason_of(one) for one in job.failures}
        for one in problems:
            if job.state == "succeeded" and str(one) not in failed:
                measured.bests[one] = here.best(one, device=device)
            else:
                measured.reasons[str(one)] = failed.get(str(one)) or reason_of(job.error or {})
    return measured


def _compared(problem: Problem, then: BestResult, now: _Measured, allowed: float) -> ShapeCheck:
    best = now.bests.get(problem)
    if best is None or best.timing is None or best.match != "exact":
        reason = now.reasons.get(str(problem)) or "it could not be measured"
        return ShapeCheck(problem, then.time_ms, FAILED, reason=reason)
    time = best.timing
    change = time.median_ms / then.time_ms - 1
    lower, upper = time.ci95_ms or (time.median_ms, time.median_ms)
    least, most = then.interval_ms or (then.time_ms, then.time_ms)
    verdict = "same"
    if change > allowed and lower > most:
        verdict = SLOWER
    elif change < -allowed and upper < least:
        verdict = "faster"
    return ShapeCheck(problem, then.time_ms, verdict, time, best.kernel, 100 * change)


def _table(found: Sequence[ShapeCheck]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("Product", "Then (ms)", "Now (ms)", "Change", ""):
        table.add_column(name, justify="left" if name in {"Product", ""} else "right", overflow="fold")
    for one in found:
        now = "-" if one.now is None else f"{one.now.median_ms:.{_DIGITS}g}"
        change = "-" if one.change_percent is None else f"{one.change_percent:+.1f} %"
        mark = {SLOWER: "red", FAILED: "red", "faster": "green"}.get(one.verdict)
        verdict = one.verdict if one.reason is None else f"{one.verdict}: {one.reason}"
        table.add_row(str(one.problem), f"{one.then_ms:.{_DIGITS}g}", now, change, verdict, style=mark)
    return table


def _summary(found: Sequence[ShapeCheck], allowed: float) -> str:
    counts = {name: sum(one.verdict == name for one in found) for name in (SLOWER, FAILED, "same", "faster")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{len(found)} problems, with a tolerance of {100 * allowed:g} %: {told}."
