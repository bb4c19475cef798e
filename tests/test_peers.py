"""The comparison with other libraries: whole on a processor, and the parts that a GPU's run is made of."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.fleet import Fleet, open_fleet
from app.worker.measuring.trial import FixtureKey
from benchmarks.kernels.peers import __main__ as peers
from benchmarks.kernels.peers.contest import Contest, Result, contest
from benchmarks.kernels.peers.contestants import Absent, Candidates, Library, Ours
from benchmarks.kernels.peers.cublaslt import Found
from benchmarks.kernels.peers.rows import Ratio, Row, meets, ratio_to, read_row, row_of, summaries
from benchmarks.kernels.peers.shapes import (
    CANDIDATE,
    CLASSES,
    SMALLER,
    TRITON,
    TUNED,
    VENDOR,
    ShapeClass,
    named,
    strictly,
)
from benchmarks.kernels.peers.triton import TENSOR_TILES, TILES, Cubin, TritonFunction, compile_all, orders
from benchmarks.report.peer_summary import GROUPS, summary
from benchmarks.report.peer_table import legend, section, text
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.space import Config
from tests.support.peer_functions import H200, Careless
from tests.support.peer_results import result

ROOT = Path(__file__).resolve().parent.parent
EVERY = [problem for one in CLASSES for problem in one.problems]


@pytest.fixture(scope="module")
def fleet(binaries: Path) -> Iterator[Fleet]:
    with open_fleet("opencl", binaries, 2**24) as fleet:
        yield fleet


def run(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "benchmarks.kernels.peers", *map(str, arguments)]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # its threads wait for each other where cores are shared
    ran = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_two_shapes_are_measured_told_and_not_measured_again(tmp_path: Path) -> None:
    out, report, known = tmp_path / "out.jsonl", tmp_path / "report.json", tmp_path / "known.jsonl"
    config = {"BM": 8, "BN": 8, "BK": 8}
    known.write_text(json.dumps({"is": "tuned", "sizes": [32, 32, 32], "kernel": "tiled", "config": config}) + "\n")
    where = (
        str(out),
        "--device",
        "opencl",
        "--smaller",
        "--classes",
        "small square",
        "ragged",
        "--shapes",
        "^(32|97)x",
    )
    tuning = ("--winners", str(known), "--kernels", "naive", "--seconds", "2", "--measuring", "0.1")
    shown = run(*where, *tuning, "--report", report)
    head, *rows = map(json.loads, out.read_text().splitlines())
    square, ragged = map(read_row, rows)
    assert set(head["digests"]) == set(CATALOGUE)
    assert (square.problem, ragged.problem) == (Problem(32, 32, 32), Problem(97, 101, 103))
    for row in (square, ragged):
        timed = {one.name for one in row.figures if one.median_ms}
        assert timed == {"tuned", "default", "tiled", "naive", "vendor"}
        assert {one.name for one in row.figures if one.reason} == {"best candidate", "Triton"}
        assert all(one.relative_l2 < 1e-4 and one.samples >= 7 for one in row.figures if one.relative_l2 is not None)
        assert row.ratio is not None
        assert row.ratio.low <= row.ratio.ratio <= row.ratio.high
    assert dict(square.figures[0].config) == config
    assert "97x101x103" in shown
    assert "only cuBLAS tells its candidates" in shown
    written = out.read_bytes()
    run(*where)
    assert out.read_bytes() == written
    told = section(json.loads(report.read_text()))
    assert "| 32x32x32 |" in told


def test_a_stopped_run_goes_on_where_it_was_and_other_kernels_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    head = {"is": "run", "model": "a", "digests": {"naive": "1"}}
    row = row_of(CLASSES[0], EVERY[0], Contest((result(TUNED, 1e-3, 1e-3),), "graph", None, 0), H200)
    out.write_text("".join(json.dumps(line) + "\n" for line in (head, row.json())) + '{"is": "sha')
    assert peers.begun(out, head) == [row]
    with pytest.raises(SystemExit, match="other kernel"):
        peers.begun(out, {**head, "digests": {"naive": "2"}})


def test_the_shapes_are_at_least_sixty_and_have_every_class_that_has_a_bar() -> None:
    assert len(set(EVERY)) == len(EVERY) >= 60
    bars = {one.name: one.bar for one in CLASSES}
    assert bars["skinny"] == bars["tall"] == 1.2
    assert bars["float64 square"] == 0.9
    assert (bars["bf16 large"], bars["tf32 square"], bars["emulated square"], bars["tf32 ragged"]) == (
        0.97,
        0.95,
        1.5,
        1.5,
    )
    skinny = next(one for one in CLASSES if one.name == "skinny").problems
    assert {min(one.m, one.n) for one in skinny} == {1, 2, 4, 8, 16}
    assert all(2048 <= size <= 8192 for one in skinny for size in (max(one.m, one.n), one.k))
    assert {one.name for one in SMALLER} <= set(bars)


def test_precisions_are_compared_with_their_own_alone() -> None:
    for one in CLASSES:
        assert len({(problem.dtype, problem.precision) for problem in one.problems}) == 1, one.name
        for problem in one.problems:
            emulated = problem.precision == "emulated"
            given = strictly(problem)
            assert given == (replace(problem, precision="strict") if emulated else problem)
            assert {Library(VENDOR).held_to(problem), Candidates().held_to(problem)} == {given}
    assert next(one for one in CLASSES if one.name == "emulated square").rivals == (VENDOR,)


def test_a_class_is_named_by_its_dtype_and_precision() -> None:
    assert named(Problem(8, 16, 32, precision="tf32")) == "8x16x32 tf32"
    assert named(Problem(8, 16, 32, 4, "bfloat16", trans_b=True)) == "8x16x32 x 4 nt bfloat16"


def test_the_ratio_is_to_the_faster_rival_round_by_round() -> None:
    ours = result(TUNED, *(1.0, 2.0) * 5)
    slow, fast = result(TRITON, *(9.0, 9.0) * 5), result(VENDOR, *(1.5, 3.0) * 5)
    assert ratio_to([ours, slow, fast], (VENDOR, TRITON)) == Ratio(VENDOR, 1.5, 1.5, 1.5)
    assert ratio_to([ours, slow], (VENDOR, TRITON)) == Ratio(TRITON, 6.75, 4.5, 9.0)
    assert ratio_to([ours, slow], (VENDOR,)) is None
    assert ratio_to([slow, fast], (VENDOR, TRITON)) is None


def row_with(low: float, high: float) -> Row:
    row = row_of(CLASSES[0], EVERY[0], Contest((result(TUNED, 1e-3, 1e-3),), "graph", None, 0), H200)
    values = row.json() | {"ratio": {"to": VENDOR, "ratio": (low + high) / 2, "low": low, "high": high}}
    return read_row(json.loads(json.dumps(values)))


def test_a_bar_is_met_where_the_upper_end_of_the_interval_reaches_it() -> None:
    assert meets(row_with(0.98, 1.0), 1.0)
    assert not meets(row_with(0.95, 0.99), 1.0)
    (found,) = summaries([row_with(0.98, 1.0), row_with(0.95, 0.99)])
    assert (found.shapes, found.met, found.least) == (2, 1, 0.97)


def test_a_shape_that_ours_failed_on_stays_in_its_class() -> None:
    failed = row_of(
        CLASSES[0], EVERY[0], Contest((Result(TUNED, "a", Config(()), reason="wrong"),), "graph", None, 0), H200
    )
    (found,) = summaries([row_with(0.98, 1.0), failed])
    assert (found.shapes, found.met, found.least, found.geomean) == (2, 1, 0.0, 0.0)
    assert "tuned: wrong" in text([failed])


@pytest.mark.parametrize(
    ("problem", "microseconds"),
    [
        (Problem(1, 4096, 4096), 15.6),
        (Problem(4096, 4096, 4096), 2054),
        (Problem(1024, 1024, 1024, dtype="float64"), 32),
        (Problem(8192, 8192, 8192, dtype="bfloat16"), 1112),
        (Problem(8192, 8192, 8192, precision="tf32"), 2223),
        (Problem(8192, 8192, 8192, precision="emulated"), 3335),
        (Problem(1, 4096, 4096, dtype="float16"), 7.8),
    ],
)
def test_the_floor_is_bytes_by_what_a_copy_reaches_or_flops_by_the_peak(problem: Problem, microseconds: float) -> None:
    row = row_of(ShapeClass("a", 1, "", ()), problem, Contest((), "graph", None, 0), H200)
    assert 1e3 * row.floor_ms == pytest.approx(microseconds, rel=0.01)


@pytest.mark.slow
def test_a_wrong_variant_never_takes_part_however_fast(fleet: Fleet) -> None:
    unit, problem = fleet.unit(), Problem(40, 24, 56)
    kernel = CATALOGUE["naive"]
    launch = kernel.launch(kernel.default(problem, unit.device), problem, unit.device)
    field = (Ours(TUNED, launch), Careless(launch, True), Careless(launch, False, "wrong"), Library(VENDOR))
    whole = (*field, Candidates(), Absent(TRITON, "not here"))
    found: Contest = unit.trials.call(contest, FixtureKey("peers", problem, 3), whole, 0.05, deadline=60)
    ours, careless, wrong, vendor, candidates, triton = found.results
    assert (careless.kernel, careless.tried) == ("naive", 2)
    assert "unwritten" in str(wrong.reason)
    assert not wrong.seconds
    assert (candidates.reason, triton.reason) == ("only cuBLAS tells its candidates", "not here")
    assert len(ours.seconds) >= 7
    assert vendor.accuracy is not None


def test_configs_are_read_from_recordings_and_from_earlier_files(tmp_path: Path) -> None:
    recorded = peers.winners_of([ROOT / "tests/data/tiled-cpu-256x256x256.replay.gz"])
    kernel, config = recorded[Problem(256, 256, 256)]
    assert kernel == "tiled"
    assert set(config) == {"BM", "BN", "BK"}
    earlier = tmp_path / "out.jsonl"
    row = row_of(CLASSES[0], EVERY[0], Contest((result(TUNED, 1e-3, 1e-3),), "graph", None, 0), H200)
    earlier.write_text(json.dumps({"is": "run"}) + "\n" + json.dumps(row.json()) + "\n")
    assert peers.winners_of([earlier]) == {EVERY[0]: (TUNED, {})}


def test_triton_is_told_what_it_would_see_itself_of_the_sizes() -> None:
    order = orders(Problem(1, 100, 96, trans_b=True), "sm_90")[0]
    assert order.signature["m"] == "constexpr"
    assert order.constants["m"] == 1
    assert order.signature["n"] == order.signature["k"] == "i32"
    assert order.divisible == (0, 1, 2, 5)
    assert order.constants["TRANS_B"] is True
    assert 12 <= len(TILES) == len(set(TILES)) <= 20
    assert 12 <= len(TENSOR_TILES) == len(set(TENSOR_TILES)) <= 20


@pytest.mark.parametrize(
    ("problem", "type_", "precision"),
    [
        (Problem(64, 64, 64), "*fp32", "ieee"),
        (Problem(64, 64, 64, precision="tf32"), "*fp32", "tf32"),
        (Problem(64, 64, 64, precision="emulated"), "*fp32", "tf32x3"),
        (Problem(64, 64, 64, dtype="bfloat16"), "*bf16", "ieee"),
        (Problem(64, 64, 64, dtype="float16"), "*fp16", "ieee"),
    ],
)
def test_triton_multiplies_in_the_class_that_is_asked_for(problem: Problem, type_: str, precision: str) -> None:
    made = orders(problem, "sm_90")
    assert {one.constants["PRECISION"] for one in made} == {precision}
    assert {one.signature["a"] for one in made} == {type_}
    widest = 4 if problem.dtype == "float32" else 2
    assert all((one.tile.BM + one.tile.BN) * one.tile.BK * widest * one.tile.stages <= 227 * 1024 for one in made)


def test_a_triton_launch_covers_c_and_passes_what_triton_added() -> None:
    problem = Problem(130, 1, 96, batch=5)
    order = orders(problem, "sm_90")[0]
    function = TritonFunction(None, Cubin(order, Path(), 64, 0, hidden=2), problem)
    assert function.grid == (-(-130 // order.tile.BM), 5)
    given = (*map(np.uint64, (11, 22, 33)), *map(np.int64, (130, 1, 96)))
    assert function.arguments(given) == (11, 22, 33, 130, 96, 0, 0)
    assert [type(one) for one in function.arguments(given)[3:5]] == [np.int32, np.int32]


@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 256, 256),
        Problem(33, 65, 127, dtype="float64", trans_a=True),
        Problem(256, 256, 256, dtype="bfloat16"),
        Problem(333, 256, 250, precision="tf32"),
        Problem(256, 256, 256, precision="emulated", trans_b=True),
    ],
)
def test_triton_compiles_without_a_gpu(problem: Problem, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    order = orders(problem, "sm_90")[0]
    made = compile_all([order], tmp_path)[order]
    assert made.reason is None
    assert made.path.stat().st_size > 0
    assert made.hidden == 2


def test_a_heuristics_result_is_laid_out_as_cublaslt_has_it() -> None:
    assert ctypes.sizeof(Found) == 96
    assert (Found.workspace.offset, Found.state.offset, Found.waves.offset) == (64, 72, 76)


def test_every_class_is_in_one_group_of_the_readmes_summary() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(one.name for one in CLASSES)


def test_the_summary_has_both_ratios_and_where_we_lose() -> None:
    def row(name: str, vendor: float, candidate: float) -> Row:
        times = {TUNED: 1e-3, VENDOR: vendor, CANDIDATE: candidate}
        timed = tuple(result(each, seconds, seconds) for each, seconds in times.items())
        return replace(row_of(CLASSES[0], EVERY[0], Contest(timed, "graph", None, 0), H200), shape_class=name)

    told = summary([report_of(*(row(one.name, *times) for one in CLASSES for times in ((2e-3, 2e-3), (2e-3, 5e-4))))])
    lines = dict(zip(GROUPS, told.splitlines()[2:], strict=True))
    shapes = 2 * len(GROUPS["float64"])
    assert lines["float64"] == f"| float64 | {shapes} | 2.00 | 1.00 | {shapes // 2} | 0.50 (64x64x64) |"


def report_of(*rows: Row) -> dict[str, Any]:
    facts = {"device": "NVIDIA H200", "environment": "CUDA 13", "vendor": "cuBLAS 13.1.0", "triton": "3.6.0"}
    return facts | {"shapes": [row.json() for row in rows]}


def test_the_section_tells_each_class_and_each_shape() -> None:
    told = section(report_of(row_with(0.98, 1.0), row_with(0.95, 0.99)))
    assert "| small square | 2 | 1 | 1 | 0.97 | 0.98 |" in told
    assert "cuBLAS 13.1.0's default and Triton 3.6.0" in legend(report_of())
    assert told.count("| 64x64x64 |") == 2
