"""tilewise bench: what is known of a shape, measured now."""

from __future__ import annotations

import pytest

from app.tuning import budget
from tests.support.cli.command_line import Run

pytest_plugins = ["tests.support.cli.command_line"]


@pytest.mark.slow
def test_bench_measures_the_best_beside_the_rest_with_intervals(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FINALS", (0.5, 1.5))
    ran = run("bench", "24x40x17", "--seconds", 30, "--quiet")
    assert (ran.code, ran.err) == (0, "")
    for name in ("naive", "tiled", "vendor"):  # the untuned choice is one of them
        assert name in ran.out
    assert "±" in ran.out
    assert "*" in ran.out


@pytest.mark.parametrize("words", [("0x1x1",), ("12", "--seconds", "0"), ()])
def test_bench_refuses_what_is_no_shape_before_anything_opens(run: Run, words: tuple[str, ...]) -> None:
    ran = run("bench", *words)
    assert ran.code == 2
    assert ran.out == ""
