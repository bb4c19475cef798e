"""What benchmarks.exports runs on a GPU, against a driver without one: it builds, ends in time, and tells reasons."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from shutil import which
from time import monotonic

import pytest

from benchmarks.exports.overhead import Overhead, overheads
from benchmarks.exports.targets import Said, last_object, run, settled
from benchmarks.exports.winners import Taken, Winner
from tests.exports.test_c import driver, taken
from tests.support.exports import winners

__all__ = ["driver"]
PROBLEM = winners.SMALL["naive"]


def won(folder: Path) -> Taken:
    """A winner taken as C++."""
    made = taken("naive", folder, "cpp", PROBLEM)
    return Taken(Winner("naive", PROBLEM, dict(made.config), "exact", 0.01, None), {"cpp": folder}, {})


def done(said: Said) -> Future[Said]:
    future: Future[Said] = Future()
    future.set_result(said)
    return future


@pytest.mark.skipif(which("gcc") is None or which("g++") is None, reason="there is no compiler of C and C++")
def test_calls_of_c_and_cpp_are_timed(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    one = won(tmp_path)
    built = run(Overhead.builds(tmp_path), tmp_path, 60.0)
    assert built.reason is None
    rows = list(overheads([(one, done(built))], monotonic() + 60))
    assert [(row["target"], row["reason"]) for row in rows] == [("c", None), ("cpp", None)]
    assert all(row["us_a_call"] > 0 for row in rows)
    assert all(row["met"] == (row["us_a_call"] <= 4.5) for row in rows)


def test_a_build_that_failed_is_a_row_with_its_reason(tmp_path: Path) -> None:
    rows = list(overheads([(won(tmp_path), done(Said({}, "cc gives 1: no", 0.1)))], monotonic() + 60))
    assert [(row["target"], row["us_a_call"], row["reason"], row["met"]) for row in rows] == [
        ("c", None, "cc gives 1: no", False),
        ("cpp", None, "cc gives 1: no", False),
    ]


def test_no_command_runs_past_the_end(tmp_path: Path) -> None:
    sleeping = (sys.executable, "-c", "import time; time.sleep(30)")
    began = monotonic()
    said = run([sleeping, sleeping], tmp_path, 60.0, began + 0.5)
    assert monotonic() - began < 5
    assert said.reason == f"{sys.executable}: TimeoutExpired"
    late = run([sleeping], tmp_path, 60.0, began)
    assert late.reason == f"{sys.executable}: no time was left"
    assert settled(Future(), began).reason == "it was not built in time"


def test_a_build_that_raises_and_a_line_that_is_no_json_are_told() -> None:
    raised: Future[Said] = Future()
    raised.set_exception(OSError("the disk is full"))
    assert settled(raised, monotonic() + 1).reason == "its build raises OSError: the disk is full"
    assert last_object("right\n{1: is no JSON}\n") == {}
    assert last_object('so\n{"right": true}\n') == {"right": True}
