"""The arithmetic of tiling, against figures worked out by hand and a GPU's own counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from kernels import CATALOGUE
from kernels.arithmetic import FMA, MMA, WGMMA, peak, peak_by
from kernels.cost_model import analyse, occupancy, predict, tile_bytes, trace
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Build, Step
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import EDGES, H200, PROCESSOR, TRANSPOSITIONS, config, homes

TENSOR = replace(
    H200,
    limits=replace(
        H200.limits,
        tensor_float16=989e12,
        tensor_bfloat16=988e12,
        tensor_tf32=494.7e12,
        tensor_float64=66.9e12,
    ),
)

NAIVE, TILED = CATALOGUE["naive"], CATALOGUE["tiled"]
WHOLE, RAGGED = (4, 64, 512, 4096), (1, 63, 511, 4095)


def square(tile: int) -> tuple[int, int, int]:
    return tile, tile, tile


def test_tiles_of_16_read_64704_bytes_and_write_9460() -> None:
    counted = analyse(TILED, config("tiled", square(16)), Problem(55, 43, 48), H200)
    assert (counted.bytes_read, counted.bytes_written) == (64_704, 9_460)


def test_owners_do_4561040_operations_and_all_launched_threads_6553600() -> None:
    counted = analyse(TILED, config("tiled", square(32)), Problem(142, 146, 110), H200)
    assert (counted.flops_owned, counted.flops_launched) == (4_561_040, 6_553_600)


def test_a_grid_of_75_by_63_has_its_last_row_of_tiles_at_the_edge() -> None:
    problem = Problem(1000, 1200, 800)
    counted = analyse(TILED, config("tiled", square(16)), problem, H200)
    assert (counted.tiles_n, counted.tiles_m, counted.blocks) == (75, 63, 4_725)
    assert counted.edge_tiles == 75
    first = (counted.tiles_m - 1) * 16
    assert (first, problem.m - 1) == (992, 999)
    assert TILED.launch(config("tiled", square(16)), problem, H200).grid == 4_725


def test_naive_intensity_is_a_quarter_and_a_tile_of_t_gives_a_quarter_of_t() -> None:
    problem = Problem(256, 512, 128)
    assert analyse(NAIVE, config("naive", (8, 32)), problem, H200).intensity == 0.25
    for tile in (4, 8, 16, 32):
        assert analyse(TILED, config("tiled", square(tile)), problem, H200).intensity == tile / 4


def test_shared_memory_without_padding_is_8_32_and_128_kib() -> None:
    assert [tile_bytes(tile, tile, tile) for tile in (32, 64, 128)] == [8 * 1024, 32 * 1024, 128 * 1024]
    assert analyse(TILED, config("tiled", square(32)), Problem(64, 64, 64), H200).shared_bytes == 8 * 1024


def test_the_trace_of_the_8_by_8_product_has_every_partial_sum() -> None:
    halves = [[[16 * half + 4 * row + q + 1 for q in range(4)] for row in range(4)] for half in range(2)]
    a = [halves[0][row] + halves[1][row] for row in range(4)] + [[0] * 8 for _ in range(4)]
    b = [[a[column][q] for column in range(8)] for q in range(8)]
    first, second = trace(a, b, 4)
    assert first == [[30, 70, 110, 150], [70, 174, 278, 382], [110, 278, 446, 614], [150, 382, 614, 846]]
    # The textbook's walk adds 1370 where 17 x 17 + 18 x 18 + 19 x 19 + 20 x 20 is 1374, and so prints 1400 for 1404.
    assert second == [
        [1404, 1740, 2076, 2412],
        [1740, 2204, 2668, 3132],
        [2076, 2668, 3260, 3852],
        [2412, 3132, 3852, 4572],
    ]
    assert second == [[sum(a[y][q] * b[q][x] for q in range(8)) for x in range(4)] for y in range(4)]


def test_a_trace_past_the_edges_ends_with_the_product() -> None:
    a, b = [[1, 2, 3], [4, 5, 6]], [[1], [10], [100]]
    assert list(trace(a, b, 2)) == [[[21], [54]], [[321], [654]]]


def test_every_batch_counts() -> None:
    one = analyse(TILED, config("tiled", square(16)), Problem(33, 17, 65), H200)
    three = analyse(TILED, config("tiled", square(16)), Problem(33, 17, 65, batch=3), H200)
    for name in ("bytes_read", "bytes_written", "flops_owned", "flops_launched", "blocks", "edge_tiles"):
        assert getattr(three, name) == 3 * getattr(one, name)


# Threads, registers and shared bytes of compiled kernels, and the blocks that an H200's driver said fit one SM.
@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        (8, 46, 0, 32, "blocks"),
        (16, 72, 2112, 28, "registers"),
        (32, 63, 3200, 32, "blocks"),
        (64, 40, 512, 24, "registers"),
        (64, 43, 0, 20, "registers"),
        (64, 48, 10496, 20, "shared memory"),
        (128, 40, 1536, 12, "registers"),
        (128, 46, 9280, 10, "registers"),
        (256, 39, 2048, 6, "registers"),
        (256, 56, 0, 4, "registers"),
        (512, 32, 25088, 4, "threads"),
        (512, 53, 0, 2, "registers"),
        (1024, 32, 33280, 2, "threads"),
        (1024, 48, 20480, 1, "registers"),
    ],
)
def test_occupancy_is_what_the_driver_says(
    threads: int, registers: int, shared_bytes: int, blocks: int, limited_by: str
) -> None:
    held = occupancy(H200.limits, threads, shared_bytes, registers)
    assert held is not None
    warps = -(-threads // 32)
    assert (held.blocks_per_sm, held.fraction) == (blocks, blocks * warps / 64)
    assert held.limited_by == limited_by


def test_shared_memory_is_taken_in_units_with_the_systems_share() -> None:
    held = occupancy(H200.limits, 128, 48 * 1024, 0)
    assert held is not None
    assert (held.blocks_per_sm, held.limited_by) == (4, "shared memory")
    turing = replace(H200.limits, shared_bytes_per_sm=65536, shared_bytes_reserved=0, threads_per_sm=1024)
    held = occupancy(turing, 128, 16385, 0)
    assert held is not None
    assert held.blocks_per_sm == 3


def test_a_block_that_does_not_fit_has_no_occupancy() -> None:
    held = occupancy(H200.limits, 1024, 0, 65)
    assert held is not None
    assert (held.blocks_per_sm, held.fraction, held.limited_by) == (0, 0.0, "registers")
    assert analyse(TILED, config("tiled", square(32)), Problem(9, 9, 9), H200, registers=65).waves is None


def test_waves_are_blocks_over_those_that_run_at_once() -> None:
    counted = analyse(TILED, config("tiled", square(32)), Problem(2048, 2048, 64), H200, registers=32)
    assert counted.occupancy is not None
    assert counted.occupancy.blocks_per_sm == 2
    assert counted.waves == 4096 / (132 * 2)


def test_a_processor_has_neither_occupancy_nor_waves() -> None:
    counted = analyse(TILED, config("tiled", square(16)), Problem(64, 64, 64), PROCESSOR)
    assert counted.occupancy is None
    assert counted.waves is None


@pytest.mark.rotating
@pytest.mark.parametrize("device", [H200, PROCESSOR], ids=lambda device: device.platform)
def test_a_prediction_is_above_the_roofline_and_grows_with_the_work(device: Device) -> None:
    # Rows that are whole 16 bytes, and rows that are not: where operands are copied first, these cost more.
    for name, values, sizes in edges_and_sizes():
        kernel, tile = CATALOGUE[name], config(name, values)
        for kind, turned in product(kernel.classes, TRANSPOSITIONS):
            problems = [Problem(size, size, size, 1, *kind, *turned) for size in sizes]
            # What the TMA unit cannot bring has no plan either.
            by_tma = name in {"hopper", "double_hopper"}
            problems = [each for each in problems if not by_tma or can_be(kernel, tile, each, device)]
            seconds = [predict(kernel, tile, each, device) for each in problems]
            assert seconds == sorted(seconds), (name, values)
            assert (
                not seconds
                or seconds[-1] > problems[-1].flops / device.limits.peak + problems[-1].bytes / device.limits.bandwidth
            )


def can_be(kernel: Kernel, tile: Config, problem: Problem, device: Device) -> bool:
    return kernel.covers(problem, device) and kernel.space.refusal(tile, problem, device) is None


def edges_and_sizes() -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(name, edge, sizes) for name in EDGES for edge in EDGES[name] for sizes in (WHOLE, RAGGED)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("device", [H200, TENSOR], ids=["plain", "tensor"])
@pytest.mark.parametrize("name", CATALOGUE)
def test_default_is_predicted_within_twenty_rooflines(name: str, device: Device) -> None:
    kernel = CATALOGUE[name]
    for dtype, precision in kernel.classes:
        for problem in homes(name, Problem(1, 1, 1, dtype=dtype, precision=precision), device)[-1:]:
            peak = peak_by(kernel.instructions, problem, device)
            bound = problem.flops / peak + problem.bytes / device.limits.bandwidth
            predicted = predict(kernel, kernel.default(problem, device), problem, device)
            assert predicted > bound
            assert name in {"naive", "tiled"} or predicted < 20 * bound + 1e-4


def test_tensor_core_kernel_is_predicted_by_their_peak() -> None:
    problem, chosen = Problem(4096, 4096, 4096, dtype="bfloat16"), config("tiled", square(64))
    plain, warps, groups = (replace(TILED, instructions=path) for path in (FMA, MMA, WGMMA))
    seconds = [predict(each, chosen, problem, TENSOR) for each in (plain, warps, groups)]
    assert seconds[0] > 5 * seconds[1] > 5 * seconds[2]
    assert len({predict(each, chosen, problem, H200) for each in (plain, warps, groups)}) == 1


@pytest.mark.parametrize(
    ("dtype", "precision", "teraflops"),
    [
        ("float32", "strict", 66.9),
        ("float32", "tf32", 494.7),
        ("float32", "emulated", 989 / 3),
        ("float64", "strict", 66.9),
        ("float16", "strict", 989),
        ("bfloat16", "strict", 988),
    ],
)
def test_the_peak_of_a_class_is_that_of_its_fastest_units(dtype: str, precision: str, teraflops: float) -> None:
    problem = Problem(1, 1, 1, dtype=dtype, precision=precision)
    assert peak(problem, TENSOR) == pytest.approx(teraflops * 1e12)
    assert peak(problem, H200) == (33.5e12 if dtype == "float64" else 66.9e12)
    assert peak_by("fma", problem, TENSOR) == peak(problem, H200)
    assert peak_by("mma.sync", problem, H200) == peak(problem, H200)


def test_a_step_after_a_launch_counts_like_one_before() -> None:
    problem = Problem(4096, 64, 512)
    step = Step(Build("step", "", "step", ()), 1, (32, 1))
    chosen = config("tiled", square(16))

    def seconds(before: tuple[Step, ...] = (), after: tuple[Step, ...] = ()) -> float:
        planned = replace(TILED, plan=lambda *given: replace(TILED.plan(*given), before=before, after=after))
        return predict(planned, chosen, problem, H200)

    assert seconds(before=(step,)) == seconds(after=(step,)) > seconds() + problem.bytes / H200.limits.bandwidth


# Median seconds on one H200 with warm caches, of the slowest and of good configs, at m = n = k.
@pytest.mark.parametrize(
    ("kernel", "values", "size", "dtype", "seconds"),
    [
        ("naive", (1, 8), 2048, "float32", 15.0e-3),
        ("naive", (8, 32), 2048, "float32", 2.52e-3),
        ("naive", (1, 8), 2048, "float64", 22.3e-3),
        ("tiled", (4, 4, 4), 2048, "float32", 10.7e-3),
        ("tiled", (16, 32, 64), 2048, "float32", 1.85e-3),
        ("tiled", (4, 4, 16), 1024, "float64", 1.71e-3),
    ],
)
def test_a_prediction_bounds_what_was_measured_from_above(
    kernel: str, values: tuple[int, ...], size: int, dtype: str, seconds: float
) -> None:
    problem = Problem(size, size, size, dtype=dtype)
    assert seconds < predict(CATALOGUE[kernel], config(kernel, values), problem, H200)
