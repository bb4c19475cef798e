"""What the kernels' own models estimate beside 83,746 times of an H200, which are in tests/data; and their fit."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from math import exp, fsum, isfinite, log
from pathlib import Path
from statistics import fmean, median
from typing import Final

import numpy as np
import pytest

from benchmarks.kernels.fit import Model, fitted
from benchmarks.kernels.trials import KEPT, Times, read_trials
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.residuals import FIRST, corrected_seconds, residuals
from kernels.space import Config
from tests.support.kernels.devices import H200
from tests.support.kernels.random_samples import seed

ROOT: Final = Path(__file__).parent.parent.parent
ENOUGH: Final = 8  # configs of a problem among which a pick says something
# The most that the pick takes of the fastest config's time, in the geometric mean; and the estimates' median error.
BOUNDS: Final = {
    "tensor_core": (1.065, 0.1),
    "register_tiled": (1.06, 0.15),
    "pipelined": (1.06, 0.15),
    "double_tensor": (1.09, 0.1),
    "double_hopper": (1.05, 0.1),
    "rank_k": (1.05, 0.1),
    "direct_tensor": (1.05, 0.1),
    "direct_double": (1.06, 0.1),
    "hopper": (1.05, 0.15),
    "gemv": (1.045, 0.1),
    "skinny": (1.08, 0.15),
}


@cache
def times() -> Mapping[str, Times]:
    """Microseconds by kernel, problem and config."""
    return read_trials([ROOT / KEPT])


def estimate(name: str, config: Config, problem: Problem) -> float:
    """Microseconds by the kernel's own model."""
    return float(1e6 * Model(name, H200).module.seconds(config, problem, H200))


def test_there_are_as_many_times_as_the_models_say() -> None:
    assert sum(len(found) for kernel in times().values() for found in kernel.values()) == 83746


@pytest.mark.parametrize("name", BOUNDS)
def test_the_config_of_the_least_estimate_is_nearly_the_fastest(name: str) -> None:
    lost = []
    for problem, found in times()[name].items():
        if len(found) >= ENOUGH:
            pick = min(found, key=lambda config: estimate(name, config, problem))
            lost.append(log(found[pick] / min(found.values())))
    assert exp(fmean(lost)) <= BOUNDS[name][0], name


@pytest.mark.parametrize("name", BOUNDS)
def test_estimates_are_near_the_times(name: str) -> None:
    errors = [
        abs(log(estimate(name, config, problem) / took))
        for problem, found in times()[name].items()
        for config, took in found.items()
    ]
    assert median(errors) <= BOUNDS[name][1], name


@pytest.mark.parametrize("name", [name for name in BOUNDS if CATALOGUE[name].seeds])
def test_a_search_begins_with_legal_configs_of_ascending_corrected_estimates(name: str) -> None:
    kernel = CATALOGUE[name]
    assert kernel.seeds is not None
    print(f"TEST_SEED={seed()}")
    known = list(times()[name])
    problems = random.Random(seed()).sample(known, len(known) // 40 + 1)  # noqa: S311 - problems, no secrets
    for problem in problems:
        seeds = kernel.seeds(problem, H200)
        assert all(kernel.space.refusal(config, problem, H200) is None for config in seeds), problem.key
        assert not seeds or seeds[0] == kernel.default(problem, H200), problem.key
        found = [corrected_seconds(kernel, config, problem, H200) for config in seeds]
        assert isfinite(fsum(found)), problem.key
        learnt = residuals(kernel, problem, H200)
        first = learnt.first(problem) if learnt else FIRST
        assert all(later >= first * earlier for earlier, later in pairwise(found)), problem.key


def test_a_fit_finds_the_constants_by_which_times_were_made() -> None:
    model, asked = Model("direct_tensor", H200), dict(list(times()["direct_tensor"].items())[::16])
    real = model.constants()
    with model.changed(real + np.where(np.arange(len(real)) % 2, 0.3, -0.3)):
        found = {
            problem: {config: estimate("direct_tensor", config, problem) for config in taken}
            for problem, taken in asked.items()
        }
    before, after = (np.std(model.errors(constants, found)) for constants in (real, fitted(model, found)))
    assert after < 0.02 < before
    assert np.array_equal(model.constants(), real)


def test_drawn_trials_are_read_as_those_that_are_kept(tmp_path: Path) -> None:
    problem = next(iter(times()["gemv"]))
    (config, took), *_ = times()["gemv"][problem].items()
    measured = [["vendor", {}, 1.0], *(["gemv", dict(config), slower * took / 1e3] for slower in (2, 1))]
    lines = tmp_path / "drawn.trials"
    lines.write_text(json.dumps({"problem": problem.key, "measured": measured}) + "\n")
    assert read_trials([lines]) == {"gemv": {problem: {config: pytest.approx(took)}}}
