"""Shapes and dtypes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.problem import ITEMSIZE, LARGEST, Problem, parse_dtype, parse_shape, shape_text


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("512", (512, 512, 512, 1)),
        (" 512 ", (512, 512, 512, 1)),
        ("1000x1200x800", (1000, 1200, 800, 1)),
        ("1000X1200X800", (1000, 1200, 800, 1)),
        ("4096x16x4096x8", (4096, 16, 4096, 8)),
        ("4096x16x4096 x 8", (4096, 16, 4096, 8)),
        ("1 x 2 × 3", (1, 2, 3, 1)),  # noqa: RUF001 - the sign of multiplication is what is tested
        ("007x8x9", (7, 8, 9, 1)),
        (str(LARGEST), (LARGEST, LARGEST, LARGEST, 1)),
    ],
)
def test_shape_is_read_in_every_notation(text: str, shape: tuple[int, ...]) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1x2",
        "axbxc",
        "1.5",
        "-1",
        "1x2x3x4x5",
        "1xx2x3",
        "1x2x",
        "x8",
        "1 2 3",
        "\u0665x1x1",
        "1x2x3\n4",
        "1,2,3",
    ],
)
def test_text_that_is_no_shape_is_refused_with_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"a shape is 512 \(a cube\), 512x512x512"):
        parse_shape(text)


@pytest.mark.parametrize("text", ["0", "0x1x1", "1x1x1x0", str(LARGEST + 1), "1x1x" + "9" * 10_000])
def test_size_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"at least 1 and at most {LARGEST}"):
        parse_shape(text)


@given(st.tuples(*[st.integers(1, LARGEST)] * 4))
def test_every_shape_reads_back_as_written(shape: tuple[int, int, int, int]) -> None:
    assert parse_shape(shape_text(*shape)) == shape


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_dtype_has_its_usual_names_in_either_case(dtype: str) -> None:
    usual = {
        "float32": "fp32 f32 float single",
        "float64": "fp64 f64 double",
        "float16": "fp16 f16 half",
        "bfloat16": "bf16",
    }
    for name in (dtype, *usual[dtype].split()):
        assert parse_dtype(name) == parse_dtype(f" {name.upper()} ") == dtype
    assert Problem(1, 1, 1, dtype=parse_dtype(dtype)).dtype == dtype


@pytest.mark.parametrize("text", ["", "float23", "int8", "tf32", "f 32"])
def test_unknown_dtype_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of float32 \(fp32, f32, float, single\), "):
        parse_dtype(text)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(512, 512, 512), "512x512x512 float32"),
        (Problem(4096, 16, 4096, 8, "bfloat16", trans_b=True), "4096x16x4096 x 8 bfloat16 nt"),
        (Problem(1, 2, 3, precision="tf32", trans_a=True, trans_b=True), "1x2x3 float32 tf32 tt"),
    ],
)
def test_problem_is_told_in_words_and_its_key_is_read_back(problem: Problem, text: str) -> None:
    assert str(problem) == text
    assert Problem.of_key(problem.key) == problem
