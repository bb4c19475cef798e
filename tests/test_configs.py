"""The benchmark of given configs: each that is right is timed, and its lines are trials that a model is fitted to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from app.services.best.kernel_order import untuned
from benchmarks.kernels import choices, configs
from benchmarks.kernels.trials import read_trials
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.residuals import corrected_seconds
from kernels.space import Config
from tests.support.kernels.devices import H200

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


def test_choices_are_what_is_taken_untuned_and_the_best_by_corrected_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.json"
    rows = ["--rows", "thin k", "any, float64"]
    monkeypatch.setattr(sys, "argv", ["choices", str(plan), "--each", "2", "--best", "4", "--seed", "5", *rows])
    choices.main()
    found = json.loads(plan.read_text())
    assert [Problem.of_key(key) for key, _ in found] == choices.problems(5, rows[1:], 2)
    for key, chosen in found:
        problem = Problem.of_key(key)
        launches = [(CATALOGUE[name], Config.of(config)) for name, config in chosen]
        assert all(kernel.space.refusal(config, problem, H200) is None for kernel, config in launches)
        first = next(untuned(problem, H200))
        assert launches[0] == (first, first.default(problem, H200))
        told = [corrected_seconds(kernel, config, problem, H200) for kernel, config in launches]
        assert told[1:] == sorted(told[1:])
        assert 2 <= len(chosen) <= 5
