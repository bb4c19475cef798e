"""The benchmark of given configs: each that is right is timed, and its lines are trials that a model is fitted to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.kernels import configs
from benchmarks.kernels.trials import read_trials
from kernels.problem import Problem

KEY = "float32/strict/nn/1x96x80x64"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("more", [[], ["--sustained", "0.05"]])
def test_given_configs_are_timed_in_turn(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "trials"
    small = {"BM": 8, "BN": 8, "BK": 8}
    plan.write_text(json.dumps([[KEY, [["tiled", small], ["naive", None], ["vendor", None]]], ["x", []]]))
    given = [str(plan), str(out), "--device", "opencl:0", "--rounds", "1", "--cache", str(cache), *more]
    monkeypatch.setattr(sys, "argv", ["configs", *given, "--until", "0"])
    configs.main()
    assert not out.read_text(), "no time was left"
    plan.write_text(json.dumps(json.loads(plan.read_text())[:1]))
    monkeypatch.setattr(sys, "argv", ["configs", *given])
    configs.main()
    found = read_trials([out])
    assert set(found) == {"tiled", "naive"}
    ((problem, times),) = found["tiled"].items()
    assert problem == Problem.of_key(KEY)
    assert [dict(config) for config in times] == [small]
    assert all(took > 0 for took in times.values())
    assert "of the vendor's" in capsys.readouterr().out
