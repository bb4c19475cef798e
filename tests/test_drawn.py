"""Shapes drawn at random: within their distributions, the same for a seed, and told by rows."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from app.devices.fleet import Fleet, open_fleet
from app.services.tuning.forecast import TrialForecasts
from benchmarks.kernels.drawn import __main__ as drawn
from benchmarks.kernels.drawn.models import MODELS
from benchmarks.kernels.drawn.shapes import BY_NAME, MOST_ELEMENTS, ROWS, Drawn, elements, shapes
from benchmarks.kernels.drawn.triton import MOST, chosen
from benchmarks.kernels.peers.contest import Contest, Result
from benchmarks.kernels.peers.rows import Ratio, row_of
from benchmarks.kernels.peers.shapes import CANDIDATE, DEFAULT, TRITON, TUNED, VENDOR, ShapeClass
from benchmarks.kernels.peers.triton import TENSOR_TILES, TILES, Cubin, Tile, TritonFunction, orders
from benchmarks.report import drawn_table
from kernels.problem import Problem
from kernels.space import Config
from tests.support.peer_functions import H200
from tests.support.peer_results import result

NAMES = [row.name for row in ROWS]
DRAWN = shapes(20261123, NAMES, 200)


def of(row: str) -> list[Problem]:
    return [shape.problem for shape in DRAWN if shape.row == row]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with open_fleet("opencl", tmp_path_factory.mktemp("cache"), 2**24) as fleet:
        yield fleet


def test_seed_decides_the_shapes_in_whatever_pieces() -> None:
    whole = {(shape.row, shape.number): shape for shape in shapes(5, NAMES, 4)}
    for name in NAMES:
        for piece in shapes(5, [name], 3):
            assert whole[piece.row, piece.number] == piece
    others = {(shape.row, shape.number): shape for shape in shapes(6, NAMES, 4)}
    assert sum(whole[key].problem == others[key].problem for key in whole) == 0


def test_a_stopped_run_has_its_rows_evenly() -> None:
    assert [shape.row for shape in shapes(5, NAMES, 2)] == [*NAMES, *NAMES]


def test_layers_are_of_16_bits_with_weights_stored_by_outputs() -> None:
    layers = {(one.outputs, one.inputs) for model in MODELS for one in model.layers}
    rows = [problem.m for problem in of("layers, 16 bits")]
    assert 1 <= min(rows) <= 4
    assert 2048 <= max(rows) <= 8192
    assert 0.3 < sum(size < 90 for size in rows) / len(rows) < 0.7
    for problem in of("layers, 16 bits"):
        assert (problem.n, problem.k) in layers
        assert problem.dtype in {"bfloat16", "float16"}
        assert (problem.trans_a, problem.trans_b, problem.batch) == (False, True, 1)
    told = {shape.layer for shape in DRAWN if shape.layer}
    assert {"Llama 3.1 8B, gate", "DeepSeek V3, kv down"} <= {
        f"{one.name}, {a.name}" for one in MODELS for a in one.layers
    }
    assert len(told) > 60


@pytest.mark.parametrize(
    ("name", "dtype", "precision"),
    [
        ("any, float32", "float32", "strict"),
        ("any, TF32", "float32", "tf32"),
        ("any, bfloat16", "bfloat16", "strict"),
        ("any, float16", "float16", "strict"),
        ("any, float64", "float64", "strict"),
    ],
)
def test_any_sizes_are_within_bounds_in_one_class_stored_every_way(name: str, dtype: str, precision: str) -> None:
    found = of(name)
    assert {(one.dtype, one.precision) for one in found} == {(dtype, precision)}
    assert {(one.trans_a, one.trans_b) for one in found} == {(a, b) for a in (False, True) for b in (False, True)}
    assert all(4 <= size <= 16384 for one in found for size in (one.m, one.n, one.k))
    assert all(2e6 < one.m * one.n * one.k < 4e11 for one in found)


@pytest.mark.parametrize("name", ["thin sides, float32", "thin sides, 16 bits"])
def test_thin_sides_are_one_or_two_of_m_and_n(name: str) -> None:
    found = [(one.m <= 64, one.n <= 64) for one in of(name)]
    assert set(found) == {(True, False), (False, True), (True, True)}
    assert all(min(one.m, one.n) >= 1 and 65 <= one.k <= 16384 for one in of(name))


def test_thin_k_and_batches_are_within_their_bounds() -> None:
    assert {True, False} == {one.k < 16 for one in of("thin k")}
    assert all(1 <= one.k <= 256 for one in of("thin k"))
    assert len({(one.dtype, one.precision) for one in of("thin k")}) == 4
    for one in of("batches"):
        assert 2 <= one.batch <= 512
        assert all(8 <= size <= 1024 for size in (one.m, one.n, one.k))
    assert max(elements(shape.problem) for shape in DRAWN) <= MOST_ELEMENTS


def test_triton_has_twelve_configs_at_most_of_every_kind_where_it_suits() -> None:
    for shape in DRAWN[:: len(NAMES) + 1]:
        tiles = chosen(shape.problem, H200)
        assert 8 <= len(set(tiles)) == len(tiles) <= MOST
        assert all(tile.splits == 1 and not tile.persistent for tile in tiles if shape.problem.batch > 1)
    deep = chosen(Problem(64, 64, 131072), H200)
    assert max(tile.splits for tile in deep) >= 16
    square = chosen(Problem(4096, 4096, 4096, dtype="bfloat16"), H200)
    assert {tile.persistent for tile in square} == {0, 1}
    assert {tile.splits for tile in square} == {1}
    plain = {replace(tile, persistent=0, splits=1) for tile in (*deep, *square)}
    assert plain <= {*TILES, *TENSOR_TILES}


def test_slices_of_any_number_are_one_binary_that_takes_scratch() -> None:
    problem = Problem(100, 130, 4096)
    three, five = orders(problem, "sm_90", [Tile(64, 64, 32, 4, 4, splits=count) for count in (3, 5)])
    assert three.compiled_as == five.compiled_as != three
    assert three.signature["partials"] == "*fp32"
    assert three.divisible == (0, 1, 2, 5, 6, 7)
    assert TritonFunction(None, Cubin(five, Path()), problem).grid == (2 * 3, 5)
    stays = orders(problem, "sm_90", [Tile(64, 64, 32, 4, 4, persistent=1)])[0]
    assert TritonFunction(None, Cubin(stays, Path()), problem, programs=4).grid == (4, 1)
    assert stays.compiled_as == stays


def part_of(text: str) -> list[tuple[str, int, Problem]]:
    options = Namespace(rows=NAMES, each=3, part=drawn.part(text))
    return [(shape.row, shape.number, shape.problem) for shape in drawn.listed(options, 5)]


@pytest.mark.parametrize("count", [1, 2, 4, 7, 40])
def test_parts_are_the_whole_together_and_have_no_shape_twice(count: int) -> None:
    parts = [shape for number in range(count) for shape in part_of(f"{number}/{count}")]
    assert len(parts) == len(set(parts)) == 3 * len(NAMES)
    assert set(parts) == {(shape.row, shape.number, shape.problem) for shape in shapes(5, NAMES, 3)}


@pytest.mark.parametrize("text", ["4/4", "-1/4", "0/0", "1", "1/2/3", "a/b"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        drawn.part(text)


@pytest.mark.slow
def test_a_shape_is_tuned_and_later_forecasts_learn_from_it(fleet: Fleet) -> None:
    unit, bench = fleet.unit(), drawn.Bench(fleet.unit(), 5, 10.0, 0.05, None)
    found = bench.searched(Problem(48, 40, 8))
    assert found.winner is not None
    assert found.winner.kernel not in {"naive", "tiled"}
    assert len(found.outcomes) >= 2
    told = drawn.trials_of(Problem(48, 40, 8), found)
    assert len(told["measured"]) + len(told["rejected"]) == len(found.outcomes) == len(told["at"])
    assert told["at"] == sorted(told["at"])
    assert list(told["phases"]) == ["preparing", "search", "finals"]
    assert found.seconds < 20
    fresh, learnt = (one.of(unit.device, found.winner) for one in (TrialForecasts(), bench.forecasts))
    assert learnt.build < fresh.build


@pytest.mark.slow
def test_nothing_is_learnt_from_the_first_tune_of_a_process(fleet: Fleet) -> None:
    unit, bench = fleet.unit(), drawn.Bench(fleet.unit(), 5, 1.0, 0.05, None)
    bench.begin()
    default = drawn.first_default(drawn.UNKEPT, unit)
    assert bench.forecasts.of(unit.device, default) == TrialForecasts().of(unit.device, default)


@pytest.mark.slow
def test_a_part_of_a_seed_is_measured_from_its_first_tune_on(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    how = {"seconds": 1.0, "measuring": 0.05, "device": "opencl", "trials": tmp_path / "trials"}
    options = Namespace(out=out, seed=5, rows=["thin sides, float32"], each=2, part=(0, 2), **how)
    assert drawn.run(options, tmp_path / "cache", time.monotonic() + 200)
    _, (head, *lines) = drawn.begun(out, None)
    assert head["seed"] == 5
    assert [(line["shape_class"], line["number"]) for line in lines] == [("thin sides, float32", 0)]
    assert len((tmp_path / "trials").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.slow
def test_a_shape_is_measured_beside_whoever_is_here(fleet: Fleet) -> None:
    bench = drawn.Bench(fleet.unit(), 5, 0.1, 0.05, None)
    line, row = bench.line(Drawn("thin k", 3, Problem(48, 40, 8)))
    assert line["exhaustive"] is True
    assert row.to_fastest is not None
    assert row.to_fastest.to == VENDOR
    assert line["untuned"]["ratio"] > 0
    assert {one.name: one.reason for one in row.figures if one.reason} == {
        CANDIDATE: "only cuBLAS tells its candidates",
        TRITON: "Triton is not here",
    }
    shape = drawn_table.shape_of(json.loads(json.dumps(line)))
    assert (shape.row, shape.number) == (row, 3)
    assert (shape.again is not None) == (row.to_fastest.high < 0.92)


def test_the_default_that_was_tuned_best_is_as_fast_as_itself() -> None:
    config = Config.of({"BM": 8})
    both = tuple(replace(result(name, 1e-3, 2e-3), kernel="tiled", config=config) for name in (TUNED, DEFAULT))
    assert drawn.untuned_ratio(Contest(both, "graph", None, 0)) == Ratio(DEFAULT, 1.0, 1.0, 1.0)
    other = replace(both[1], config=Config.of({"BM": 16}), seconds=(2e-3, 4e-3))
    assert drawn.untuned_ratio(Contest((both[0], other), "graph", None, 0)) == Ratio(DEFAULT, 2.0, 2.0, 2.0)


def line_of(row: str, number: int, times: dict[str, float], again: float | None = None) -> dict[str, Any]:
    timed: tuple[Result, ...] = tuple(result(name, *[seconds] * 9) for name, seconds in times.items())
    shape = Drawn(row, number, Problem(8, 16, 32 + number))
    whole = row_of(ShapeClass(row, BY_NAME[row].bar, "", ()), shape.problem, Contest(timed, "graph", None, 0), H200)
    own = {"number": number, "layer": None, "exhaustive": number == 3, "trials": 9, "tuning_seconds": 4.0}
    second = asdict(Ratio(VENDOR, again, again, again)) if again else None
    default = asdict(Ratio(DEFAULT, 1.1, 1.1, 1.1))
    return own | {"untuned": default, "again": second} | whole.json()


def piece(path: Path, *lines: dict[str, Any], seed: int = 5) -> Path:
    head = dict.fromkeys(drawn_table.SAME, "x") | {"is": "run", "seed": seed, "device": "H200", "seconds": 4.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    return path


def test_pieces_of_one_seed_are_one_report_and_of_two_are_refused(tmp_path: Path) -> None:
    fast, even = {TUNED: 1e-3, VENDOR: 2e-3, TRITON: 4e-3}, {TUNED: 1e-3, VENDOR: 1e-3}
    one = piece(tmp_path / "1", line_of("thin k", 1, fast), line_of("any, TF32", 0, even))
    other = piece(tmp_path / "2", line_of("thin k", 0, even), line_of("thin k", 1, even))
    report = drawn_table.merged([one, other])
    found = [(line["shape_class"], line["number"], line["to_fastest"]["ratio"]) for line in report["shapes"]]
    assert found == [("any, TF32", 0, 1.0), ("thin k", 0, 1.0), ("thin k", 1, 2.0)]
    with pytest.raises(SystemExit, match="differ in seed"):
        drawn_table.merged([one, piece(tmp_path / "3", seed=6)])


def test_the_table_tells_each_rows_mean_its_worst_and_what_is_lost_twice(tmp_path: Path) -> None:
    slow = {TUNED: 1e-3, VENDOR: 9e-4, TRITON: 8e-4, CANDIDATE: 5e-4}
    lines = (
        line_of("thin k", 0, {TUNED: 1e-3, VENDOR: 2e-3}),
        line_of("thin k", 1, slow, again=0.5),
        line_of("thin k", 2, slow, again=0.95),
        line_of("thin k", 3, {VENDOR: 1e-3}),
        line_of("any, TF32", 0, {TUNED: 1e-3, VENDOR: 1e-3}),
    )
    told = drawn_table.section(drawn_table.merged([piece(tmp_path / "1", *lines)]))
    assert "| any, TF32 | 1 | 1.15 | 1.00 | 1 | 0 | 1.00 | 8x16x32 |" in told
    assert "| thin k | 4 | 1.2 | 0.00 | 1 | 2 | 0.00 | 8x16x35 |" in told
    assert "1.10 (median), 1.10 (95th percentile), 1.10 (most)" in told
    assert "Seed 5: H200" in told


def test_a_run_goes_on_with_its_own_seed(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first, lines = drawn.begun(out, None)
    assert lines == []
    assert first != drawn.begun(out, None)[0]
    piece(out)
    assert drawn.begun(out, None)[0] == drawn.begun(out, 5)[0] == 5
    with pytest.raises(SystemExit, match="of seed 5"):
        drawn.begun(out, 6)
