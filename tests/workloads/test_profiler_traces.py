from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from app.errors import InvalidWorkload
from app.workloads import json_events
from app.workloads.counted import Workload
from app.workloads.json_events import ObjectScanner
from app.workloads.reader import read_workload
from benchmarks.workloads.trace import LAYERS, STEP, events, write_trace


def call(name: str, start: float, number: int, dims: list[Any], strides: list[Any], **more: Any) -> dict[str, Any]:
    types = ["float"] * len(dims)
    args = {"External id": number, "Input Dims": dims, "Input Strides": strides, "Input type": types, **more}
    where = {"pid": 1, "tid": 1, "ts": start, "dur": 10.0}
    return {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", **where, "args": args}


def kernel(number: int, micros: float, name: str = "sgemm") -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 0, "dur": micros, "args": {"External id": number}}


def trace(*found: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], **more, "traceEvents": found}).encode()


def read(data: bytes) -> Workload:
    return read_workload(io.BytesIO(data))


def counts(found: Workload) -> dict[str, int]:
    return {str(one.problem): one.count for one in found.problems}


def test_a_recorded_decoder_is_counted_as_by_hand(tmp_path: Path) -> None:
    """Two steps of one layer: each of its six products twice, with the letters that its strides say."""
    path = tmp_path / "trace.json.gz"
    write_trace(path, layers=1, steps=2)
    with path.open("rb") as file:
        found = read_workload(file)
    assert found.source == "torch.profiler"
    assert counts(found) == {
        "16x12288x4096 bfloat16 nt": 2,
        "16x512x128 x 32 bfloat16 nt": 2,
        "16x128x512 x 32 bfloat16": 2,
        "16x4096x4096 bfloat16 nt": 2,
        "16x22016x4096 bfloat16 nt": 2,
        "16x4096x11008 bfloat16 nt": 2,
    }
    assert found.problems[0].incumbent == "nvjet_tst_4_bz_NNT"  # the product with most time comes first
    assert found.problems[0].total_ms == pytest.approx(2 * 0.071)
    assert sum(one.total_ms or 0 for one in found.problems) == pytest.approx(2 * sum(each[-1] for each in STEP) / 1e3)
    assert LAYERS > 1


def test_only_leaves_are_counted_and_kernels_are_joined_wherever_they_stand() -> None:
    outer = call("mm", 0, 1, [[4, 8], [8, 6]], [[8, 1], [6, 1]]) | {"dur": 30.0}
    inner = call("mm", 5, 2, [[4, 8], [8, 6]], [[8, 1], [6, 1]])
    other = call("mm", 100, 3, [[4, 8], [8, 6]], [[8, 1], [6, 1]])
    found = read(trace(kernel(2, 7.0), kernel(2, 1.0, "reduce"), outer, inner, other, kernel(3, 12.0)))
    (one,) = found.problems
    assert (one.count, one.incumbent) == (2, "sgemm")
    assert one.total_ms == pytest.approx(0.020)
    assert one.ci95_ms is not None


def test_without_kernels_the_time_is_the_operations_own() -> None:
    (one,) = read(trace(call("mm", 0, 1, [[4, 8], [8, 6]], [[8, 1], [6, 1]]))).problems
    assert one.total_ms == pytest.approx(0.010)
    assert one.incumbent == "aten::mm"


@pytest.mark.parametrize(
    ("dims", "strides", "name"),
    [
        ([[4, 8], [8, 6]], [[8, 1], [6, 1]], "4x6x8 float32"),
        ([[4, 8], [8, 6]], [[8, 1], [1, 8]], "4x6x8 float32 nt"),
        ([[4, 8], [8, 6]], [[1, 4], [1, 8]], "4x6x8 float32 tt"),
        ([[4, 8], [8, 6]], [[1, 4], [7, 1]], "4x6x8 float32 tn"),  # with a longer leading dimension
        ([[4, 8], [8, 6]], [[64, 2], [12, 2]], "4x6x8 float32"),  # PyTorch copies it, by rows
        ([[1, 8], [8, 1]], [[8, 1], [1, 1]], "1x1x8 float32"),
        ([[1, 8], [8, 6]], [[1, 1], [1, 8]], "1x6x8 float32 nt"),
    ],
)
def test_transpositions_are_read_from_strides(dims: list[Any], strides: list[Any], name: str) -> None:
    assert counts(read(trace(call("mm", 0, 1, dims, strides)))) == {name: 1}


def test_operands_stand_where_each_operation_has_them() -> None:
    matrix = call("addmm", 0, 1, [[6], [4, 8], [8, 6]], [[1], [8, 1], [6, 1]])
    batch = call("baddbmm", 50, 2, [[3, 4, 6], [3, 4, 8], [3, 8, 6]], [[24, 6, 1], [32, 8, 1], [48, 1, 8]])
    assert counts(read(trace(matrix, batch))) == {"4x6x8 float32": 1, "4x6x8 x 3 float32 nt": 1}


def test_what_is_no_problem_is_told_of() -> None:
    scaled = call("_scaled_mm", 0, 1, [[4, 8], [8, 6]], [[8, 1], [1, 8]])
    empty = call("mm", 50, 2, [[0, 8], [8, 6]], [[8, 1], [6, 1]])
    whole = call("mm", 90, 3, [[4, 8], [8, 6]], [[8, 1], [6, 1]])
    whole["args"]["Input type"] = ["long", "long"]
    found = read(trace(scaled, empty, whole, call("mm", 200, 4, [[4, 8], [8, 6]], [[8, 1], [6, 1]])))
    assert counts(found) == {"4x6x8 float32": 1}
    reasons = {one.reason for one in found.skipped}
    assert sum(one.count for one in found.skipped) == len(reasons) == 3
    assert any("type long" in reason for reason in reasons)


def test_a_trace_without_shapes_says_how_to_make_one() -> None:
    made = call("mm", 0, 1, [], [])
    made["args"] = {"External id": 1}
    with pytest.raises(InvalidWorkload, match="record_shapes=True"):
        read(trace(made))


def test_names_with_brackets_quotes_and_backslashes_change_nothing() -> None:
    odd = [kernel(1, 5.0, name) for name in ('void k<"{[">()', "\\", "\\\\", 'a\\"b}', "]}" * 9, "\N{SNOWMAN}\\u007b")]
    found = read(trace(call("mm", 0, 1, [[4, 8], [8, 6]], [[8, 1], [6, 1]]), *odd, traceName="a\\", x={"y": ["}"]}))
    assert found.problems[0].total_ms == pytest.approx(0.030)


def test_numbers_that_are_no_json_are_read_as_the_profiler_writes_them() -> None:
    odd = trace(call("mm", 0, 1, [[4, 8], [8, 6]], [[8, 1], [6, 1]], bandwidth=float("inf")))
    assert b"Infinity" in odd
    assert counts(read(odd)) == {"4x6x8 float32": 1}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_pieces_of_any_size_give_the_same_objects(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(size)  # noqa: S311 - no secret
    names = ["".join(drawn.choices('ab"\\{}[], \n\N{SNOWMAN}', k=drawn.randrange(9))) for _ in range(60)]
    entries = [{"name": name, "args": {"list": [1, {"deep": name}], name: {}}} for name in names]
    data = json.dumps({"first": [1, [2]], "events": entries, "last": "\\"}, ensure_ascii=False).encode()
    monkeypatch.setattr(json_events, "_PIECE", size)
    found = [json.loads(text) for text in ObjectScanner(cast("BinaryIO", io.BytesIO(data))).objects()]
    assert [one for one in found if isinstance(one, dict)] == entries


def test_a_trace_that_is_cut_anywhere_is_refused_with_line_and_column() -> None:
    whole = b"\n".join([b'{"traceEvents": [', *(json.dumps(each).encode() + b"," for each in [*events(0, 1)][:4])])
    whole += b'{"ph": "X"}]}'
    for end in range(1, len(whole), 29):
        with pytest.raises(InvalidWorkload) as refused:
            read_workload(io.BytesIO(whole[:end]))
        if "line" in refused.value.facts:
            assert int(str(refused.value.facts["line"])) <= whole[:end].count(b"\n") + 1
    assert Counter(whole)[ord("{")] > 4


@pytest.mark.parametrize("text", ["{]", "[}}", '{"a": [}]', "[" * 200, '{"traceEvents": 1}', "[1, 2]", '{"a": "'])
def test_brackets_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(InvalidWorkload):
        read(text.encode())


def test_changed_bytes_never_raise_anything_else() -> None:
    drawn = random.Random(7)  # noqa: S311 - no secret
    data = trace(*events(0, 1))
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(drawn.randrange(1, 6)):
            changed[drawn.randrange(len(changed))] = drawn.choice(b'"{}[]\\,:0aZ\xff\n ')
        try:
            read(bytes(changed))
        except InvalidWorkload:
            continue
