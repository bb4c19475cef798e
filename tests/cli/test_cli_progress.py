"""The progress of a job as a terminal shows it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console

from app.cli.progress import follow
from tilewise import Event, Job

JOB = Job("0" * 32, "tune", "running")


class Told:
    """A session whose job tells what it is given."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def events(self, job_id: str) -> Iterator[Event]:
        assert job_id == JOB.id
        yield from self._events

    def job(self, job_id: str) -> Job:
        return Job(job_id, "tune", "succeeded")


def shown(width: int, *events: tuple[str, dict[str, Any]]) -> list[str]:
    """The lines that the progress left, the last state of each refresh."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    told: Any = Told([Event(number, name, data) for number, (name, data) in enumerate(events, 1)])
    assert follow(told, JOB, console).state == "succeeded"
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is what was given
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)) if line.strip()]


def progress(**data: Any) -> tuple[str, dict[str, Any]]:
    return "progress", {"done": 5, "total": 720, "search_best_ms": 0.02411, "phase": "search", **data}


def test_bar_is_of_time_though_few_of_the_possible_trials_are_done() -> None:
    lines = shown(120, progress(elapsed_seconds=30.0, budget_seconds=40.0, eta_seconds=10.0))
    assert " 75 %" in lines[-1]
    assert "10 s left" in lines[-1]
    assert "5 trials" in lines[-1]


def test_bar_is_of_trials_where_these_end_first() -> None:
    lines = shown(120, progress(done=60, total=64, elapsed_seconds=4.0, budget_seconds=40.0, eta_seconds=1.0))
    assert " 94 %" in lines[-1]


def test_bar_never_goes_back_and_ends_full() -> None:
    later = progress(elapsed_seconds=20.0, budget_seconds=40.0), progress(elapsed_seconds=20.0, budget_seconds=400.0)
    assert " 50 %" in shown(120, *later)[-1]
    assert "100 %" in shown(120, *later, ("end", {"state": "succeeded"}))[-1]


@pytest.mark.parametrize("problem", [{"m": 4096, "n": 16384, "k": 4096}, {"m": 64, "n": 64, "k": 64}])
def test_progress_fits_a_terminal_of_80_columns(problem: dict[str, int]) -> None:
    trial = "trial", {"problem": problem, "kernel": "register_tiled"}
    lines = shown(80, progress(elapsed_seconds=1.0, budget_seconds=40.0, eta_seconds=1039.0), trial)
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert "1039 s left" in lines[-1]
    assert "so far ~0.02411 ms" in lines[-1]
