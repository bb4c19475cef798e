"""What a tune is forecast to need: the trial of what may be promoted, not of whatever is tried soonest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.services.tuning.forecast import TrialForecasts
from kernels import CATALOGUE
from kernels.problem import Problem
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
