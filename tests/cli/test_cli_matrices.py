"""What the command line makes of operands before a service is asked."""

from __future__ import annotations

import numpy as np
import pytest

from app.cli.matrices import operand, problem
from tilewise import Problem
from tilewise._operands import flat


def test_a_contiguous_operand_is_sent_from_where_it_lies() -> None:
    array = np.ones((3, 4), np.float32)
    assert np.shares_memory(np.frombuffer(flat(operand(array)), np.uint8), array)


@pytest.mark.parametrize("dtype", [">f4", "<f4", ">f8", "<f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_order_of_elements_and_bytes_arrives_as_plain_rows(dtype: str, order: str) -> None:
    values = np.arange(12, dtype=dtype).reshape(3, 4)
    made = operand(np.asarray(values, order="F" if order == "F" else "C"))
    assert made.flags.c_contiguous
    assert made.dtype.isnative
    assert np.array_equal(made, values)
    assert bytes(flat(made)) == np.ascontiguousarray(values).astype(values.dtype.newbyteorder("=")).tobytes()


def test_slices_and_negative_strides_are_made_whole() -> None:
    values = np.arange(40, dtype=np.float64).reshape(5, 8)
    assert np.array_equal(operand(values[::-1, ::2]), values[::-1, ::2])


def test_the_sizes_are_those_of_the_operands_as_multiplied() -> None:
    a, b = np.ones((3, 2, 5), np.float64), np.ones((3, 7, 2), np.float64)
    assert problem(a, b, trans_a=True, trans_b=True, precision="strict") == Problem(
        5, 7, 2, 3, "float64", "strict", trans_a=True, trans_b=True
    )


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ((2, 3), (4, 5), "inner dimensions disagree: op\\(A\\) is 2 x 3, op\\(B\\) is 4 x 5"),
        ((2, 2, 3), (3, 3, 5), "two equal batches"),
        ((2, 2, 3), (3, 5), "two equal batches"),
    ],
)
def test_operands_that_do_not_fit_each_other_are_refused_here(
    a: tuple[int, ...], b: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        problem(np.ones(a, np.float32), np.ones(b, np.float32), trans_a=False, trans_b=False, precision="strict")


def test_what_is_no_matrix_of_floats_is_refused_here() -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        operand([1.0, 2.0])
    with pytest.raises(ValueError, match="one of float32, float64, float16, bfloat16, got int64"):
        operand(np.ones((2, 2), np.int64))
    single, double = np.ones((2, 2), np.float32), np.ones((2, 2), np.float64)
    with pytest.raises(ValueError, match="share one dtype"):
        problem(single, double, trans_a=False, trans_b=False, precision="strict")
