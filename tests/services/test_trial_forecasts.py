"""What a tune is forecast to need: the trial of what may be promoted, not of whatever is tried soonest."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.services.tuning.forecast import TrialForecasts
from app.tuning.outcome import Accuracy, Measured, Timing
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200
from tests.support.tuning.host_device import DEVICE

UNIT: Any = SimpleNamespace(device=DEVICE)  # a budget without seconds has nothing measured


def needed(problem: Problem, *names: str, built: str = "") -> float:
    forecasts = TrialForecasts()
    if built:
        kernel = CATALOGUE[built]
        forecasts.built(DEVICE, kernel.launch(kernel.default(problem, DEVICE), problem, DEVICE), 0.0)
    return forecasts.needed(UNIT, problem, [CATALOGUE[name] for name in names], None)


@pytest.mark.parametrize("kernel", ["register_tiled", "batched"])
def test_a_tune_needs_the_default_that_is_clearly_faster(kernel: str) -> None:
    problem = Problem(128, 128, 128)
    assert needed(problem, "naive", kernel) > needed(problem, "naive") + 0.5
    assert needed(problem, "naive", kernel) == pytest.approx(needed(problem, kernel))
    assert needed(problem, "naive", kernel, built=kernel) < needed(problem, "naive", kernel) - 0.5


def test_a_tune_needs_what_is_tried_soonest_where_no_default_is_clearly_faster() -> None:
    problem = Problem(1, 1, 1)
    assert needed(problem, "naive", "register_tiled") < needed(problem, "register_tiled") - 0.5


@pytest.mark.parametrize("kernel", ["hopper", "tensor_core", "vendor"])
def test_on_a_gpu_small_products_do_not_make_a_large_one_look_slow(kernel: str) -> None:
    forecasts, small, large = TrialForecasts(), Problem(64, 64, 64, dtype="float16"), Problem(4096, 4096, 4096)
    large = replace(large, dtype="float16")

    def contender(problem: Problem) -> Problem | Launch:
        return problem if kernel == "vendor" else CATALOGUE[kernel].launch(default(problem), problem, H200)

    def default(problem: Problem) -> Config:
        return Config.of({}) if kernel == "vendor" else CATALOGUE[kernel].default(problem, H200)

    timing = Timing(2e-3, None, 1)
    outcome = Measured(kernel, default(small), timing, Accuracy(0.0, 0.0), seconds=(2e-6,))
    forecasts.learn(H200, contender(small), outcome, 0.05)
    took = 2e-4  # of a large one on an H200
    assert took / 5 < forecasts.of(H200, contender(large)).launch < 5 * took
