"""The numbers that a search is given of a config: of one length, finite, and the launch's own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernels import CATALOGUE
from kernels.cost_model import analyse, predict
from kernels.device import Device
from kernels.features import features
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR, config
from tests.support.pairwise import crossed

PROBLEMS = (Problem(1, 1, 1), Problem(1000, 1200, 800), Problem(17, 4096, 33, batch=3, dtype="float64", trans_b=True))
TILED = CATALOGUE["tiled"]


def _computes(name: str, device: Device, problem: Problem) -> bool:
    return CATALOGUE[name].covers(problem, device)


@pytest.mark.drawn(2)
@crossed(_computes, name=sorted(CATALOGUE), device=[H200, PROCESSOR], problem=PROBLEMS)
def test_every_legal_config_has_finite_features_of_one_length(name: str, device: Device, problem: Problem) -> None:
    kernel = CATALOGUE[name]
    legal = kernel.space.legal(problem, device)
    rows = [features(kernel, one, problem, device) for one in legal[:: 1 + len(legal) // 200]]
    assert rows
    assert len({len(row) for row in rows}) == 1
    assert all(math.isfinite(value) for row in rows for value in row)


def test_the_first_is_the_log2_of_the_predicted_seconds() -> None:
    problem = Problem(1000, 1200, 800)
    one = config("tiled", (32, 16, 8))
    assert 2 ** features(TILED, one, problem, H200)[0] == pytest.approx(predict(TILED, one, problem, H200))


def test_they_are_the_launchs_own_figures() -> None:
    problem = Problem(1024, 1024, 1024)
    one = config("tiled", (16, 32, 8))
    known = analyse(TILED, one, problem, H200)
    assert known.occupancy is not None
    assert known.waves is not None
    _, threads, blocks, shared, work, full, occupied, _, waves, last, *rest = features(TILED, one, problem, H200)
    assert (2**threads, 2**blocks, 2**shared, 2**work) == (512, 2048, known.shared_bytes, 1)
    assert (full, occupied) == (1, known.occupancy.fraction)
    assert (2**waves, last) == pytest.approx((known.waves, known.waves / math.ceil(known.waves)))
    area, aspect, intensity, wanted, *parameters = rest
    assert (2**area, 2**aspect, wanted) == (512, 0.5, 1)
    assert 2**intensity == pytest.approx(known.intensity)
    assert parameters == [4, 5, 3]


def test_kernel_with_any_parameters_has_features() -> None:
    problem = Problem(64, 64, 64)
    kernel = replace(TILED, plan=lambda _config, _problem: Plan(1, (1, 1)))
    rows = [features(kernel, Config.of({"block_size_x": size, "unroll": 0}), problem, H200) for size in (32, 96)]
    assert rows[0][0] == rows[1][0]
    assert rows[0][-2:] == (5, -1)
    assert rows[1][-2:] == (math.log2(96), -1)
