"""The measurement of how exact products are, on a processor: it tells an accurate product from one that is not."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from app.devices.opencl import OpenCLBackend
from benchmarks.kernels import accuracy
from benchmarks.kernels.accuracy_operands import HARD, cases
from benchmarks.report.accuracy_table import section

REPORT = {"device": "a device", "environment": "a driver", "precision": "emulated"}


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> accuracy.Products:
    return accuracy.Products(OpenCLBackend("opencl:0", tmp_path_factory.mktemp("cache")), "strict")


@pytest.mark.slow
def test_strict_kernels_keep_the_bound_on_every_kind_of_operands(products: accuracy.Products) -> None:
    found = list(accuracy.lines(products, ["tiled"], small=True))
    assert [line.operands for line in found][-len(HARD) :] == list(HARD)
    assert [line.outside for line in found] == [()] * len(found)
    assert all(each.of_bound is not None and each.of_bound < 1 for line in found for each in line.errors)
    exact = next(line for line in found if line.operands == "small integers")
    assert {each.relative_l2 for each in exact.errors} == {0.0}
    told = section(REPORT | {"lines": [asdict(line) for line in found]})
    assert told.count("\n| ") == len(found) + 2
    assert "| sequential FMA |" in told


def test_what_is_less_exact_than_float32_is_outside() -> None:
    for given in cases(3, 24, (512,), 512):
        exact = given.a.astype(np.float64) @ given.b.astype(np.float64)
        scale = np.abs(given.a).astype(np.float64) @ np.abs(given.b).astype(np.float64)
        rounded = exact.astype(np.float32)
        k = given.a.shape[1]
        plain = accuracy.compared("a", rounded, exact, scale, k)
        assert accuracy.within(plain, plain, normal=given.normal), given.name
        if given.normal or given.name == "rows and columns 2^100 apart":
            with np.errstate(over="ignore", invalid="ignore"):
                halves = (each.astype(np.float16).astype(np.float64) for each in (given.a, given.b))
                coarse = accuracy.compared("b", np.matmul(*halves).astype(np.float32), exact, scale, k)
            assert not accuracy.within(coarse, plain, normal=given.normal)


def test_unexpected_infinities_are_outside_and_declined_products_not() -> None:
    exact, scale = np.ones((2, 2)), np.full((2, 2), 4.0)
    c = np.array([[1, np.inf], [1, 1]], np.float32)
    wrong = accuracy.compared("a", c, exact, scale, 4)
    assert wrong.unlike == 1
    assert not accuracy.within(wrong, wrong, normal=False)
    declined = accuracy.Error("a", declined=3)
    assert accuracy.within(declined, wrong, normal=True)
    line = accuracy.Line("these", 4, False, (declined, wrong), ())
    assert "| these | declined | 0.0e+00 (0, 1 not finite) |" in section(
        REPORT | {"lines": [asdict(line) | {"errors": [asdict(declined) | {"by": "b"}, asdict(wrong)]}]}
    )


def test_operands_are_as_hard_as_their_names_say() -> None:
    made = {given.name: given for given in cases(3, 24, (), 96)}
    tiny = np.finfo(np.float32).smallest_normal
    denormal = np.abs(made["denormal operands"].a)
    assert ((denormal > 0) & (denormal < tiny)).mean() > 0.9
    near = made["near overflow"]
    largest = np.abs(near.a.astype(np.float64) @ near.b).max()
    assert 2.0**122 < largest < np.finfo(np.float32).max
    left = made["all but a millionth cancels"]
    assert np.linalg.norm(left.a.astype(np.float64) @ left.b) < 1e-5 * np.linalg.norm(np.abs(left.a) @ np.abs(left.b))
    for given in made.values():
        assert given.a.dtype == given.b.dtype == np.float32
        assert np.isfinite(given.a).all()
        assert np.isfinite(given.b).all()
