from __future__ import annotations

import gzip
import io
from collections.abc import Mapping

import pytest

from app.errors import InvalidWorkload
from app.workloads.counted import CountedProblem, Workload
from app.workloads.options import ReadOptions
from app.workloads.reader import SOURCES, read_workload
from benchmarks.workloads.samples import AITER, CUBLASLT, CUTLASS, HEAD, HIPBLASLT, SHAPES, TUNABLEOP

COUNTS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "tunableop": (
        TUNABLEOP,
        {"256x1024x512 bfloat16 nt": 2, "256x1024x512 x 4 bfloat16 nt": 1, "32x64x16 float32": 1},
    ),
    "cublaslt": (CUBLASLT, {"256x1024x512 bfloat16": 1, "256x1024x512 x 3 bfloat16 nt": 1}),
    "aiter": (AITER, {"16x4096x7168 bfloat16 nt": 1}),
    "cutlass": (CUTLASS, {"512x1024x256 float16 tn": 1, "96x80x64 x 2 float32 nt": 1}),
    "hipblaslt": (HIPBLASLT, {"256x1024x512 x 2 bfloat16 nt": 1, "32x64x16 float32 tf32 tn": 1}),
    "shapes": (
        SHAPES,
        {"512x512x512 float32": 3, "4096x16x4096 x 8 bfloat16 nt": 12, "64x64x64 float32 tf32": 1},
    ),
}


def read(text: str | bytes, source: str | None = None, **options: object) -> Workload:
    data = text.encode() if isinstance(text, str) else text
    return read_workload(io.BytesIO(data), source, ReadOptions(**options))  # type: ignore[arg-type]


def named(found: Workload) -> dict[str, CountedProblem]:
    return {str(one.problem): one for one in found.problems}


@pytest.mark.parametrize("source", COUNTS)
def test_a_file_is_recognised_and_its_products_counted(source: str) -> None:
    text, counts = COUNTS[source]
    for data in (text, text.replace("\r\n", "\n").replace("\n", "\r\n"), gzip.compress(text.encode())):
        found = read(data)
        assert found.source == source
        assert {name: one.count for name, one in named(found).items()} == counts


def test_times_and_incumbents_are_those_of_the_file() -> None:
    found = named(read(TUNABLEOP))["256x1024x512 bfloat16 nt"]
    assert found.total_ms is not None
    assert found.total_ms == pytest.approx(0.00776416 + 0.00866528)
    assert found.ci95_ms is not None
    assert found.ci95_ms[0] < found.total_ms / 2 < found.ci95_ms[1]
    assert (named(read(TUNABLEOP))["32x64x16 float32"].total_ms, found.incumbent) == (None, "Default")
    fastest = named(read(AITER))["16x4096x7168 bfloat16 nt"]
    assert (fastest.total_ms, fastest.incumbent) == (0.01, "Cijk_Alik")
    profiled = named(read(CUTLASS))["512x1024x256 float16 tn"]
    assert (profiled.total_ms, profiled.incumbent) == (0.25, "quick")  # a way that computes something else is no time
    chosen = named(read(CUBLASLT))["256x1024x512 bfloat16"].incumbent
    assert chosen == "cublasLt algorithm 66 MATMUL_TILE_64x32 MATMUL_STAGES_64xAUTO"


@pytest.mark.parametrize(("source", "what"), [("tunableop", "Float8"), ("aiter", "float8_e4m3fnuz")])
def test_products_of_types_that_are_not_computed_are_told_of(source: str, what: str) -> None:
    (skipped,) = read(COUNTS[source][0]).skipped
    assert (what in skipped.reason, skipped.count) == (True, 1)


def test_row_major_orders_of_cublaslt_are_not_swapped() -> None:
    rows = CUBLASLT.replace("ld=", "order=ORDER_ROW ld=")
    assert set(named(read(rows))) == {"1024x256x512 bfloat16", "1024x256x512 x 3 bfloat16 tn"}
    mixed = CUBLASLT.replace("ld=", "order=ORDER_ROW ld=", 1)
    assert read(mixed).skipped[0].count == 1


def test_what_a_file_leaves_open_is_the_options() -> None:
    assert set(named(read("M,N,K\n16,32,64\n", dtype="bfloat16"))) == {"16x32x64 bfloat16 nt"}
    assert set(named(read("64\n", dtype="float64"))) == {"64x64x64 float64"}
    assert set(named(read(TUNABLEOP, precision="tf32"))) >= {"32x64x16 float32 tf32"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("512x512x512\n512x512\n", (2, 1)),
        ("512x512x512 int8\n", (1, 1)),
        ("0x1x1\n", (1, 1)),
        ("64 float64 tf32\n", (1, 1)),
        ("64 * 0\n", (1, 1)),
        ("GemmTunableOp_float_NN,nn_64_32\n", (1, 24)),
        ("GemmTunableOp_float_NN,nn_64_32_0\n", (1, 24)),
        ("M,N,K\n1,2\n", (2, 1)),
        ("M,N,K\n1,2,3,4\n", (2, 1)),
        ("M,N,K,K\n1,2,3,4\n", (1, 1)),
        ("M,N,K\n1,2,99999999999\n", (2, 1)),
        ("- { function: matmul, M: 8 }\n", (1, 1)),
        ("64\n\n\n64\0\n", (4, 3)),
        (b"64\n64 \xff\n", (2, 4)),
        ("64 " + "x" * 70000, (1, 65536)),
        (f"{HEAD}[Trace][cublasLtMatmul] Adesc=[type=R_16BF rows=4 co", (1, 1)),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str | bytes, place: tuple[int, int]) -> None:
    with pytest.raises(InvalidWorkload) as refused:
        read(text, "shapes" if isinstance(text, str) and "\0" in text else None)
    assert (refused.value.facts["line"], refused.value.facts["column"]) == place
    assert f"line {place[0]}, column {place[1]}" in refused.value.message


@pytest.mark.parametrize("text", ["", " \n", "# nothing\n", b"\x1f\x8b", b"\x1f\x8b\x08\0junk", "Validator,A,1\n"])
def test_files_without_products_are_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidWorkload):
        read(text)


def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused() -> None:
    packed = gzip.compress((b"# " + b"x" * 60_000 + b"\n") * 400, 9)
    with pytest.raises(InvalidWorkload, match="unpacks"):
        read(packed)


def test_a_file_of_too_many_shapes_is_refused() -> None:
    with pytest.raises(InvalidWorkload, match="4096"):
        read("".join(f"{size}\n" for size in range(1, 4098)))


def test_a_file_of_too_many_lines_is_refused() -> None:
    with pytest.raises(InvalidWorkload, match="200000"):
        read("#\n" * 200_001)


def test_a_source_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(InvalidWorkload, match="must be one of"):
        read("64", "excel")
    assert len(SOURCES) == 8


def test_a_workload_is_the_same_after_it_was_stored() -> None:
    for text, _ in COUNTS.values():
        for one in read(text).problems:
            assert CountedProblem.from_json(one.to_json()) == one
