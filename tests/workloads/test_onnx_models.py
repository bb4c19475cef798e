"""Models written by the onnx package 1.23: model.onnx.gz as it was made, inferred.onnx.gz with its inferred shapes."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest

from app.errors import InvalidWorkload
from app.workloads.options import ReadOptions
from app.workloads.reader import read_workload

_DATA = Path(__file__).parent.parent / "data" / "workloads"
_ATTENTION = {"16x16x8 x 8 float32": 1}


def counts(data: bytes, free: int | None = None) -> tuple[dict[str, int], dict[str, int]]:
    found = read_workload(io.BytesIO(data), None, ReadOptions(free=free))
    assert found.source == "onnx"
    skipped: dict[str, int] = {}
    for one in found.skipped:
        skipped[one.what] = skipped.get(one.what, 0) + one.count
    return {str(one.problem): one.count for one in found.problems}, skipped


@pytest.mark.parametrize("name", ["model.onnx.gz", "inferred.onnx.gz"])
def test_products_follow_from_the_shapes_that_a_model_tells(name: str) -> None:
    """A batch of rows by weights, the next layer behind a reshape, and a product of two inputs behind a transposition.

    The operand of one more comes of NonZero, whose shape nobody knows.
    """
    data = gzip.decompress((_DATA / name).read_bytes())
    assert counts(data) == (_ATTENTION, {"MatMul": 2, "Gemm": 1})
    layers = {"48x64x32 float32": 1, "48x10x64 float32 nt": 1}
    assert counts(data, free=3) == (_ATTENTION | layers, {"MatMul": 1})


def test_a_model_that_is_cut_anywhere_is_refused() -> None:
    data = gzip.decompress((_DATA / "model.onnx.gz").read_bytes())
    for end in range(1, len(data), 211):
        with pytest.raises(InvalidWorkload, match="no ONNX model"):
            read_workload(io.BytesIO(data[:end]), "onnx")


def test_changed_bytes_never_raise_anything_else() -> None:
    drawn, data = random.Random(3), gzip.decompress((_DATA / "model.onnx.gz").read_bytes())  # noqa: S311 - no secret
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(drawn.randrange(1, 5)):
            changed[drawn.choice([drawn.randrange(600), drawn.randrange(len(data))])] = drawn.randrange(256)
        try:
            read_workload(io.BytesIO(bytes(changed)), "onnx", ReadOptions(free=2))
        except InvalidWorkload:
            continue
