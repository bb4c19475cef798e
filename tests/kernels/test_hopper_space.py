"""hopper's space, defaults, plans and tensor maps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hoppertiles import CLASSES, H200, launch, shapes, tile
from kerneldevices import PROCESSOR, TRANSPOSITIONS

from kernels import packing
from kernels.fp32_emulation import halves
from kernels.hopper import HOPPER, seconds
from kernels.hopper.plan import (
    piece_of,
    shared_bytes,
    sides,
    slices_of,
    span,
    stage_bytes,
    sums_bytes,
    threads,
    tiles,
    works,
)
from kernels.hopper.space import SPACE, enough_stages, needed, stages_fit, sums
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.space import Config

CUBE = Problem(4096, 4096, 4096, dtype="bfloat16")


def test_it_covers_half_types_tf32_and_emulated_float32_on_hopper_alone() -> None:
    assert set(HOPPER.classes) == set(CLASSES)
    assert HOPPER.covers(CUBE, H200)
    assert not HOPPER.covers(CUBE, replace(H200, architecture="sm_100"))
    assert not HOPPER.covers(CUBE, PROCESSOR)
    assert not HOPPER.covers(replace(CUBE, dtype="float32"), H200)
    shallow = Problem(4096, 4096, 128, precision="emulated")
    assert "k of 256 and more" in str(HOPPER.refusal(shallow, H200))
    assert HOPPER.instructions(CUBE, H200) == "wgmma"


@pytest.mark.parametrize(("dtype", "precision"), CLASSES[1:])
def test_the_space_is_rich(dtype: str, precision: str) -> None:
    for problem in shapes(dtype, precision)[::3]:
        found = SPACE.legal(problem, H200)
        assert 10 <= len(found) <= 5000, (problem.key, len(found))


def test_building_configs_up_finds_what_asking_each_one_finds() -> None:
    draw, problem = random.Random(7), replace(CUBE, m=1000, n=1000, k=904)  # noqa: S311 - configs, not secrets
    found = SPACE.legal(problem, H200)
    for chosen in draw.sample(found, 200):
        assert SPACE.refusal(chosen, problem, H200) is None
    names, values = tuple(SPACE.parameters), tuple(SPACE.parameters.values())
    asked = (
        Config(tuple((name, draw.choice(kind)) for name, kind in zip(names, values, strict=True))) for _ in range(9000)
    )
    assert {each for each in asked if SPACE.refusal(each, problem, H200) is None} <= set(found)


def test_a_rule_reads_no_more_than_it_says() -> None:
    assert set(SPACE.reads) == set(SPACE.rules)
    chosen = HOPPER.default(CUBE, H200)
    for reason, names in SPACE.reads.items():
        part = Config(tuple((name, value) for name, value in chosen.items() if name in names))
        assert SPACE.rules[reason](part, CUBE, H200)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"BK": 32}, "a phase that is not 128 bytes"),
        ({"PACK_K": 1}, "copies of operands that need none"),
        ({"TMA_STORE": 0}, "boxes of C whose rows"),
        ({"PROMOTE_K": 64}, "sums that stay in the tensor cores"),
        ({"BM": 192}, "another number of rows than whole 64s"),
        ({"BM": 256}, "more sums a thread"),
        ({"BN": 168}, "a side across k"),
        ({"STAGES": 5}, "more shared memory"),
        ({"STAGES": 2}, "more stages than are of use, or fewer"),
        ({"SPLIT_K": 2}, "SMs that have work as it is"),
        ({"MIN_BLOCKS": 2, "STAGES": 2}, "more sums a thread"),
        ({"BLOCKS": 0}, "another number of blocks"),
        ({"BLOCKS": 114}, "another number of blocks"),
        ({"BN": 64, "STAGES": 8}, "small tiles"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(changes: dict[str, int], rule: str) -> None:
    chosen = HOPPER.default(CUBE, H200)
    refusal = SPACE.refusal(Config.of(dict(chosen) | changes), CUBE, H200)
    assert refusal is not None
    assert refusal.startswith(rule), refusal


def test_large_squares_get_two_consumers_clusters_and_blocks_that_stay() -> None:
    chosen = HOPPER.default(CUBE, H200)
    names = ("BM", "BN", "CONSUMERS", "CLUSTER", "STAGES", "SPLIT_K", "BLOCKS")
    assert tuple(chosen[name] for name in names) == (128, 256, 2, 2, 4, 1, 132)
    assert threads(chosen) == 384
    assert shared_bytes(chosen, CUBE) == 4 * (384 * 128 + 16) + 2 * 2 * 8192
    assert (stage_bytes(chosen, CUBE), sums(chosen, CUBE)) == (384 * 128, 128)


def test_few_rows_are_on_the_instructions_columns_and_deep_products_in_slices() -> None:
    few = HOPPER.default(Problem(16, 8192, 8192, dtype="bfloat16"), H200)
    assert (few["SWAP_AB"], few["BM"]) == (1, 16)
    deep = HOPPER.default(Problem(64, 64, 131_072, dtype="bfloat16"), H200)
    assert deep["SPLIT_K"] >= 32


@pytest.mark.parametrize(
    ("problem", "changes", "enough"),
    [
        (Problem(512, 512, 512, dtype="bfloat16"), {"SWAP_AB": 1, "BM": 32}, [7, 8]),  # as many as there are phases
        (Problem(512, 512, 520, dtype="bfloat16"), {"SWAP_AB": 1, "BM": 32}, [8, 10]),
        (Problem(64, 64, 64, 512, dtype="bfloat16"), {"MIN_BLOCKS": 2}, [2]),  # two pieces of work of one phase each
        (Problem(16, 8192, 8192, dtype="bfloat16"), {"SWAP_AB": 1, "BM": 16}, [8, 10]),  # a mebibyte a phase
        (Problem(16, 4096, 8192, dtype="bfloat16"), {"SWAP_AB": 1, "BM": 16}, [12, 16]),  # half as much
        (Problem(16, 4096, 8192, dtype="bfloat16"), {"SWAP_AB": 1, "BM": 8}, [12, 16]),  # two read the same
        (CUBE, {"BM": 128, "BN": 256, "CONSUMERS": 2}, [3, 4]),
    ],
)
def test_stages_are_no_more_than_a_blocks_phases_or_than_memory_keeps_up_with(
    problem: Problem, changes: dict[str, int], enough: list[int]
) -> None:
    assert enough_stages(tile(problem, **changes), problem, H200)[-2:] == enough


@pytest.mark.parametrize(("dtype", "precision"), CLASSES[1:])
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_defaults_are_legal_and_their_plans_fit(dtype: str, precision: str, turned: tuple[bool, bool]) -> None:
    for shape in shapes(dtype, precision):
        problem = replace(shape, trans_a=turned[0], trans_b=turned[1])
        chosen = HOPPER.default(problem, H200)
        assert SPACE.refusal(chosen, problem, H200) is None, problem.key
        one = HOPPER.launch(chosen, problem, H200)
        assert one.grid % one.cluster == 0
        assert one.shared_bytes <= H200.limits.shared_bytes
        assert len(one.maps) == 3
        assert not one.scratch_bytes or one.scratch_bytes > 4 * COUNTERS
        assert seconds(chosen, problem, H200) > 0


@pytest.mark.parametrize(("dtype", "precision"), CLASSES[1:])
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_the_smallest_problems_have_a_default_too(dtype: str, precision: str, turned: tuple[bool, bool]) -> None:
    draw = random.Random(3)  # noqa: S311 - sizes, not secrets
    for _ in range(12):
        m, n, k = (draw.choice((1, 3, 8, 9, 16, 24, 40, 65)) for _ in range(3))
        deep = k + 255 if precision == "emulated" else k
        problem = Problem(m, n, deep, draw.choice((1, 5)), dtype, precision, *turned)
        assert SPACE.refusal(HOPPER.default(problem, H200), problem, H200) is None, problem.key


def test_sides_change_places_with_swap() -> None:
    problem = Problem(100, 200, 304, dtype="float16", trans_b=True)
    left, right = sides(tile(problem, BM=64, BN=80), problem)
    assert (left.operand, left.tile, left.size, left.along) == ("a", 64, 100, False) or left.along
    assert (right.operand, right.tile, right.size, right.along) == ("b", 80, 200, True)
    left, right = sides(tile(problem, SWAP_AB=1, BM=80, BN=128), problem)
    assert (left.operand, left.tile, right.operand, right.tile) == ("b", 128, "a", 80)


def test_an_operand_along_k_is_one_box_and_one_across_k_a_box_for_each_span() -> None:
    problem = Problem(100, 200, 304, 3, dtype="float16", trans_a=True, trans_b=True)
    left, right, out = launch(problem, tile(problem, BM=128, CONSUMERS=2, BN=96, CLUSTER=2)).maps
    # A is k x m and copied, as 100 elements are no whole 16 bytes; B's 96 rows are brought by two blocks.
    assert (left.operand, left.sizes, left.strides) == ("scratch", (304, 100, 3), (640, 64_000))
    assert (left.box, left.offset) == ((64, 128, 1), 4 * COUNTERS)
    assert (right.operand, right.sizes, right.strides, right.box) == ("b", (304, 200, 3), (608, 121_600), (64, 48, 1))
    assert (out.operand, out.sizes, out.box, out.swizzle) == ("c", (200, 100, 3), (32, 64, 1), 64)
    across = replace(problem, m=104, trans_b=False)
    left, right, _ = launch(across, tile(across, BM=128, CONSUMERS=2, BN=96, CLUSTER=2)).maps
    assert (left.sizes, left.strides, left.box, left.swizzle) == ((104, 304, 3), (208, 63_232), (64, 64, 1), 128)
    assert (right.sizes, right.strides, right.box, right.swizzle) == ((200, 304, 3), (400, 121_600), (32, 32, 1), 64)


def test_halves_are_read_from_scratch_low_ones_behind_high_ones() -> None:
    problem = Problem(100, 200, 300, 2, precision="emulated", trans_a=True)
    one, split = launch(problem, tile(problem)), halves(problem)
    left, right, _ = one.maps
    assert (left.element, left.sizes, left.strides) == ("float16", (640, 100, 2), (1280, 128_000))
    assert (left.offset, right.offset) == (128 * split.at_a, 128 * split.at_b)
    assert one.numbers[:6] == split.numbers
    assert (one.verdict_at, one.before) == (split.verdict_at, split.before)


def test_slices_leave_sums_behind_what_is_copied_and_are_joined_after() -> None:
    problem = Problem(100, 33, 1000, 2, dtype="bfloat16")
    config = tile(problem, BN=48, SPLIT_K=4)
    one = launch(problem, config)
    made = packing.packed_k_major(problem, packing.B, 4 * COUNTERS // 128)
    assert one.numbers == (*made.numbers, 4, made.end, 4, 1, 16)
    assert one.scratch_bytes == made.end * 128 + 2 * 4 * 100 * 40 * 4
    assert sums_bytes(config, problem, 4) == 2 * 4 * 100 * 40 * 4
    assert [step.build.entry for step in (*one.before, *one.after)] == ["pack_k_major", "split_k_reduce"]
    assert one.after[0].grid == 2 * -(-100 * 40 // (256 // 4 * 4))
    assert slices_of(tile(problem, SPLIT_K=16), problem) == 16


def test_blocks_that_stay_have_as_many_rounds_as_all_sms_would() -> None:
    problem = replace(CUBE, m=128 * 65, n=256)
    chosen = tile(problem, BM=64, BN=256, STAGES=4)
    assert works(chosen, problem) == tiles(chosen, problem) == 130
    assert SPACE.refusal(Config.of(dict(chosen) | {"BLOCKS": 128}), problem, H200) is not None
    assert (stages_fit(chosen, problem, H200), span(80, 2), piece_of(tile(CUBE, BN=176), CUBE)) == (5, 32, 16)


def test_tf32_has_its_right_side_along_k_and_copies_it_only_where_neither_way_round_is() -> None:
    swapped, upright = Config.of({"SWAP_AB": 1}), Config.of({"SWAP_AB": 0})
    found = {}
    for turned in TRANSPOSITIONS:
        problem = Problem(1024, 1024, 1024, precision="tf32", trans_a=turned[0], trans_b=turned[1])
        found[turned] = needed(upright, problem), needed(swapped, problem)
        chosen = HOPPER.default(problem, H200)
        assert chosen["PACK_K"] == found[turned][chosen["SWAP_AB"]]
        assert (chosen["PACK_K"] == 0) == (0 in found[turned])
    wanted = {(False, False): (2, 0), (False, True): (0, 0), (True, False): (2, 1), (True, True): (0, 1)}
    assert found == wanted
