"""tilewise check: a bundle's winners measured again, and what became slower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.interchange import bundle
from app.interchange.results import BestResult, ResultsFile
from kernels.problem import Problem
from kernels.space import Config
from tests.support.cli.command_line import Run

pytest_plugins = ["tests.support.cli.command_line"]


def written(folder: Path, best: BestResult) -> Path:
    """A bundle of one best."""
    file = folder / "one.bundle.jsonl"
    file.write_text("".join(bundle.lines(ResultsFile((), (best,)), "a test")))
    return file


@pytest.mark.slow
def test_check_says_what_became_slower_than_a_bundle(run: Run, tmp_path: Path) -> None:
    (device,) = run("devices", "--json").json
    config = Config.of({"BM": 4, "BN": 4, "BK": 4})  # which is none that is answered with here
    impossible = BestResult(device["model"], Problem(24, 56, 18), "tiled", config, 1e-6, "2026-01-31T12:00:00+00:00")
    slower = run("check", "--against", written(tmp_path, impossible), "--seconds", 60, "--tolerance", "3 %")
    assert slower.code == 1, slower
    assert "slower" in slower.out
    assert "1 problems, with a tolerance of 3 %: 1 slower." in slower.err
    assert slower.err.count("Job ") == 2  # what looks slower is measured a second time
    tried = run("trials", "--kernel", "tiled", "--limit", "20", "--json").json
    assert dict(config) in [one["config"] for one in tried]  # the bundle's own, as it was imported
    assert run("imports", "--json").json == []
    lax = replace(impossible, time_ms=1e6)
    held = run("check", "--against", written(tmp_path, lax), "--quiet", "--json", "--seconds", 60)
    assert held.code == 0, held.err
    (one,) = held.json["shapes"]
    assert (one["verdict"], one["change_percent"] < -50, len(held.json["jobs"])) == ("faster", True, 1)


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("{}", (), "no bundle"),
        ("".join(bundle.lines(ResultsFile((), ()), "a test")), (), "has no best"),
        ("{}", ("--tolerance", "much"), "per cent"),
    ],
)
def test_check_refuses_what_is_no_bundle_before_anything_opens(
    run: Run, tmp_path: Path, text: str, more: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "wrong"
    file.write_text(text)
    ran = run("check", "--against", file, *more)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
