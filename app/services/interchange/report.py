"""The report of an import: each of its lines beside what is known here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.interchange.results import BestResult, ConfigResult, TuningResults
from kernels import CATALOGUE
from kernels.space import Config

OUTCOMES: Final = ("added", "same", "better", "worse", "conflict", "refused")
CLOSE: Final = 0.02  # of a time: what says nothing where there is no interval


@dataclass(frozen=True, slots=True)
class KnownTime:
    """What is known of a config: its median and interval in milliseconds, or that it failed; and by what text."""

    median_ms: float | None
    interval_ms: tuple[float, float] | None = None
    digest: str | None = None
    config: Config | None = None
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One line of an import: where it stands in the file, what became of it, what it is about, and why."""

    line: int
    outcome: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Every line of an import, in the file's order."""

    lines: Sequence[ReportLine]

    @property
    def counts(self) -> dict[str, int]:
        """How many lines there are of each outcome."""
        found = Counter(line.outcome for line in self.lines)
        return {name: found[name] for name in OUTCOMES}


def refusal_of(space: TuningResults, one: ConfigResult) -> str | None:
    """Why a config cannot be one of the kernel that it names; None where it can, or where no kernel has the name."""
    kernel = CATALOGUE.get(space.kernel)
    if kernel is None:
        return None
    try:
        kernel.space.config(space.config(one))
    except ValueError as error:
        return f"it is no config of {space.kernel}: {error}"
    return None


def line_of(space: TuningResults, one: ConfigResult, known: KnownTime | None, *, is_first: bool) -> ReportLine:
    """What becomes of a config: `known` is what was known of it; `is_first`: the file has not had it before."""
    subject = f"{space.problem or space.size} {space.kernel} {_text(space.members(one))}"
    if not is_first:
        return ReportLine(one.line, "conflict", subject, "the file has this config twice: the first is kept")
    if (reason := refusal_of(space, one)) is not None:
        return ReportLine(one.line, "refused", subject, reason)
    if known is None:
        unknown = f"no kernel here is called {space.kernel}: it is kept, and no search starts from it"
        return ReportLine(one.line, "added", subject, unknown if space.kernel not in CATALOGUE else "it was not known")
    theirs = KnownTime(one.median_ms, one.interval_ms, space.digest)
    return ReportLine(one.line, *_compared(theirs, known, subject))


def best_line(best: BestResult, known: KnownTime | None) -> ReportLine:
    """What becomes of a best, beside the one that was known for its problem and device."""
    subject = f"the best of {best.problem} on {best.device}"
    space = best.results()
    if (reason := refusal_of(space, space.results[0])) is not None:
        return ReportLine(best.line, "refused", subject, reason)
    if known is None:
        return ReportLine(
            best.line, "added", subject, f"{_choice(best.kernel, best.config)} takes {best.time_ms:.4g} ms"
        )
    theirs = KnownTime(best.time_ms, best.interval_ms, best.digest, best.config, best.kernel)
    return ReportLine(best.line, *_compared(theirs, known, subject))


def _compared(theirs: KnownTime, ours: KnownTime, subject: str) -> tuple[str, str, str]:
    """The outcome, the subject and the detail."""
    same_choice = (theirs.kernel, theirs.config) == (ours.kernel, ours.config)
    if theirs.median_ms is None or ours.median_ms is None:
        if theirs.median_ms is ours.median_ms:
            return "same", subject, "it failed here too"
        is_failure = theirs.median_ms is None
        told = "it failed there and was measured here" if is_failure else "it was measured there and failed here"
        return "conflict", subject, told
    if same_choice and theirs.digest and ours.digest and theirs.digest != ours.digest:
        return "conflict", subject, "it was measured with another text of the kernel"
    there, here = theirs.median_ms, ours.median_ms
    told = f"{there:.4g} ms there, {here:.4g} ms here"
    if not same_choice and theirs.kernel is not None and theirs.config is not None and ours.config is not None:
        told += f": {_choice(theirs.kernel, theirs.config)} there, {_choice(ours.kernel or '', ours.config)} here"
    if _overlap(theirs, ours):
        return "same", subject, told
    return ("better" if there < here else "worse"), subject, told


def _overlap(one: KnownTime, other: KnownTime) -> bool:
    low, high = _interval(one)
    lowest, highest = _interval(other)
    return low <= highest and lowest <= high


def _interval(known: KnownTime) -> tuple[float, float]:
    time = known.median_ms or 0.0
    return known.interval_ms or (time * (1 - CLOSE / 2), time * (1 + CLOSE / 2))


def _choice(kernel: str, config: Config) -> str:
    return f"{kernel} {config}"


def _text(members: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in members.items())
