"""The client's notations are the service's: shapes, problems, and the headers of a product."""

from __future__ import annotations

import pytest

from kernels import problem as service
from tilewise import Problem, Shape
from tilewise._dtypes import DTYPES, numpy_dtype
from tilewise._matmul import parse_config, parse_server_timing


@pytest.mark.parametrize(
    "text", ["512", "0512", "1x2x3", "1 x 2 X 3", "4096x16x4096 x 8", "1\u00d72\u00d73", "2147483647"]
)
def test_a_shape_is_read_and_written_as_the_service_does(text: str) -> None:
    shape = Shape.parse(text)
    assert (shape.m, shape.n, shape.k, shape.batch) == service.parse_shape(text)
    assert str(shape) == service.shape_text(*service.parse_shape(text))


@pytest.mark.parametrize("text", ["", "1x2", "0", "1x2x3x4x5", "-1", "2147483648", "1x2x", "9" * 5000, "1x0x1"])
def test_client_refuses_shapes_in_the_services_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|shape") as theirs:
        service.parse_shape(text)
    with pytest.raises(ValueError, match=r"size|shape") as ours:
        Shape.parse(text)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("precision", ["strict", "emulated"])
def test_a_problem_is_written_as_the_service_does(precision: str, transposed: tuple[bool, bool]) -> None:
    sizes = (5, 6, 7, 8, "float64", precision, *transposed)
    assert str(Problem(*sizes)) == str(service.Problem(*sizes))


def test_the_dtypes_are_the_services() -> None:
    assert {name: numpy_dtype(name).itemsize for name in DTYPES} == service.ITEMSIZE


def test_the_headers_of_a_product_are_read_back() -> None:
    assert parse_config("BM=16,BN=32") == parse_config('{"BM": 16, "BN": 32}') == {"BM": 16, "BN": 32}
    assert parse_config("") == {}
    assert parse_server_timing('queue;dur=0.25, kernel;desc="x";dur=2, total') == {"queue": 0.25, "kernel": 2.0}
