"""What corrects estimates: what it brings where it was not fitted, and where nothing is corrected."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest

from app.services.best.kernel_order import covering, untuned
from benchmarks.kernels.residuals import differs, fitted, judged, table, written
from benchmarks.kernels.trials import KEPT, Times, read_trials
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.residuals import FIRST, FIRST_OF_FEW, by_corrected, corrected_seconds, of_text, ranked, residuals
from tests.support.kernels.devices import H200, PROCESSOR

ROOT = Path(__file__).parent.parent.parent
CORRECTED = ("direct_double", "gemv", "hopper", "pipelined", "tensor_core")
CUBE = Problem(512, 512, 512, dtype="bfloat16")


@cache
def times(name: str) -> Times:
    return read_trials([ROOT / KEPT])[name]


@pytest.mark.parametrize("name", CORRECTED)
def test_a_corrected_estimate_is_nearer_the_time(name: str) -> None:
    kernel, errors = CATALOGUE[name], []
    assert kernel.seconds is not None
    for problem, found in list(times(name).items())[::10]:
        for config, took in found.items():
            told = kernel.seconds(config, problem, H200), corrected_seconds(kernel, config, problem, H200)
            errors.append([abs(log(1e6 * seconds / took)) for seconds in told])
    alone, corrected = (median(column) for column in zip(*errors, strict=True))
    assert corrected < 0.7 * alone, (corrected, alone)


@pytest.mark.parametrize("name", ["direct_double", "gemv"])
def test_picks_of_problems_held_out_lose_less_than_by_the_model_alone(name: str) -> None:
    one = table(name, {name: times(name)})
    found = judged([one], [list(times(name))[part::3] for part in range(3)])
    assert len(found) > 50
    lost = [
        [log(min(each, key=lambda row: row[column])[0] / min(each)[0]) for each in found.values()] for column in (1, 2)
    ]
    alone, corrected = (exp(fmean(column)) for column in lost)
    assert corrected < alone, (corrected, alone)


def test_a_file_corrects_as_what_was_fitted_and_other_trials_make_another() -> None:
    one = table("double_hopper", {"double_hopper": times("double_hopper")})
    text = written([one])
    read, (smooth, trees) = of_text(text)["double_hopper"], fitted(one)
    some = one.rows[::20]
    told = np.array([read.sum(tuple(figures)) for figures in some])
    assert np.std(told - smooth.sum(some) - trees.predict(some)) < 0.005  # thresholds are rounded
    half = one.of(np.arange(len(one.rows)) % 2 == 0)
    assert not differs([one], text, text)
    assert differs([one], text, written([half]))


def test_nothing_is_corrected_where_nothing_was_learnt() -> None:
    hopper = CATALOGUE["hopper"]
    assert residuals(hopper, CUBE, H200) is not None
    emulated = replace(CUBE, dtype="float32", precision="emulated")
    huge = Problem(16384, 16384, 16384, dtype="bfloat16")
    silent = [
        residuals(hopper, emulated, H200),
        residuals(hopper, huge, H200),
        residuals(hopper, CUBE, replace(H200, architecture="sm_100")),
        residuals(hopper, CUBE, replace(H200, limits=replace(H200.limits, sms=78))),
        residuals(CATALOGUE["tiled"], Problem(64, 64, 64), PROCESSOR),
    ]
    assert silent == [None] * 5
    seeds = CATALOGUE["register_tiled"].space.legal(Problem(128, 128, 128), PROCESSOR)[:5]
    assert ranked(CATALOGUE["register_tiled"], seeds, Problem(128, 128, 128), PROCESSOR) == tuple(seeds)


def test_the_first_choice_of_rules_is_left_for_what_is_clearly_faster_alone() -> None:
    assert by_corrected("abc", [1.0, FIRST + 0.01, 2.0], FIRST) == ["a", "b", "c"]
    assert by_corrected("abc", [1.0, FIRST - 0.01, 0.5], FIRST) == ["c", "b", "a"]


def test_of_problems_as_few_are_known_of_the_first_choice_is_left_for_what_is_faster_by_more() -> None:
    learnt = residuals(CATALOGUE["hopper"], CUBE, H200)
    assert learnt is not None
    assert learnt.first(CUBE) == FIRST
    assert learnt.first(Problem(8192, 8192, 8192, dtype="bfloat16")) == FIRST_OF_FEW
    large = [problem for problem in times("hopper") if problem.flops > learnt.few_flops]
    assert 0 < len(large) <= 5


def test_kernels_that_correct_are_compared_by_their_corrected_defaults() -> None:
    ladder = list(untuned(CUBE, H200))
    assert {kernel.name for kernel in ladder} == {kernel.name for kernel in covering(CUBE, H200)}
    known = [kernel for kernel in ladder if residuals(kernel, CUBE, H200) is not None]
    assert len(known) > 2
    assert ladder[: len(known)] == known
    told = [corrected_seconds(kernel, kernel.default(CUBE, H200), CUBE, H200) for kernel in known]
    assert all(later >= FIRST * earlier for earlier, later in pairwise(told))
