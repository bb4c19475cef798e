"""hopper's space, defaults, plans and tensor maps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kernels import packing
from kernels.common import wgmma_registers
from kernels.common.division import tile_order
from kernels.common.wgmma_registers import WIDTHS
from kernels.fp32_emulation import split_operands
from kernels.hopper import HOPPER
from kernels.hopper.cost_model import seconds
from kernels.hopper.plan import (
    accumulators,
    is_pingpong,
    is_reduced_in_launch,
    partials_bytes,
    shared_bytes,
    sharers,
    split_fits,
    splits_of,
    stage_bytes,
    store_box_columns,
    swizzle_bytes,
    threads,
    tile_operands,
    tiles,
    work_tiles,
)
from kernels.hopper.space import SPACE, SPLITS, enough_stages, not_for_tma, stages_fit, useful_splits
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import PROCESSOR, TRANSPOSITIONS
from tests.support.kernels.hopper_configs import CLASSES, H200, launch, shapes, tile

pytest_plugins = ("tests.support.kernels.uncorrected",)
# Defaults are those of the models and rules: what is learnt of these changes with each fit.
pytestmark = pytest.mark.usefixtures("uncorrected")

CUBE = Problem(4096, 4096, 4096, dtype="bfloat16")


def test_it_covers_half_types_tf32_and_emulated_float32_on_hopper_alone() -> None:
    assert set(HOPPER.classes) == set(CLASSES)
    assert HOPPER.covers(CUBE, H200)
    assert not HOPPER.covers(CUBE, replace(H200, architecture="sm_100"))
    assert not HOPPER.covers(CUBE, PROCESSOR)
    assert not HOPPER.covers(replace(CUBE, dtype="float32"), H200)
    shallow = Problem(4096, 4096, 128, precision="emulated")
    assert "k of 256 and more" in str(HOPPER.refusal(shallow, H200))
    assert HOPPER.instructions == "wgmma"


@pytest.mark.rotating
@pytest.mark.parametrize(("dtype", "precision"), CLASSES[1:])
def test_the_space_is_rich(dtype: str, precision: str) -> None:
    for problem in shapes(dtype, precision)[::3]:
        found = SPACE.legal(problem, H200)
        assert 10 <= len(found) <= 18_000, (problem.key, len(found))


@pytest.mark.rotating
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
        ({"BK": 32}, "a k tile that is not 128 bytes along k"),
        ({"PACK_K": 1}, "packing or realigning of operands that need neither, or neither of those that need one"),
        ({"TMA_STORE": 0}, "TMA stores although C's rows are not multiples of 16 bytes, or none although they are"),
        ({"PROMOTE_K": 64}, "accumulation in the tensor cores over more of k than the error bound allows"),
        ({"BM": 192}, "rows that are not a multiple of 64 for each consumer"),
        ({"BM": 256}, "more accumulators a thread"),
        ({"BN": 168}, "an MN-major operand whose tile is no multiple of its swizzle"),
        ({"STAGES": 5}, "more shared memory"),
        ({"STAGES": 2}, "more stages than are of use, or fewer"),
        ({"SPLIT_K": 2}, "split k, where tiles alone fill the SMs"),
        ({"MIN_BLOCKS": 2, "STAGES": 2}, "more accumulators a thread"),
        ({"BLOCKS": 0}, "persistent blocks other than one for each SM"),
        ({"C_IN_STAGES": 1}, "C through stages that have another tile next"),
        ({"BLOCKS": 114}, "persistent blocks other than one for each SM"),
        ({"BN": 64, "STAGES": 8}, "small tiles"),
    ],
)
def test_what_cannot_run_well_is_refused_by_its_reason(changes: dict[str, int], rule: str) -> None:
    chosen = HOPPER.default(CUBE, H200)
    refusal = SPACE.refusal(Config.of(dict(chosen) | changes), CUBE, H200)
    assert refusal is not None
    assert refusal.startswith(rule), refusal


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"PACK_K": 1, "REALIGN": 2}, "packing or realigning of operands"),
        ({"REALIGN": 1}, "packing or realigning of operands"),
        ({"BM": 128, "CONSUMERS": 2}, "operands realigned beside other blocks or consumers"),
        ({"MIN_BLOCKS": 2, "STAGES": 2}, "operands realigned beside other blocks or consumers"),
        ({"CLUSTER": 2}, "operands realigned beside other blocks or consumers"),
        ({"BN": 80}, "operands realigned beside other blocks or consumers"),
        ({"STAGES": 16}, "more shared memory"),
    ],
)
def test_what_cannot_be_realigned_is_refused_by_its_reason(changes: dict[str, int], rule: str) -> None:
    problem = Problem(300, 201, 999, dtype="bfloat16")
    chosen = tile(problem, REALIGN=3, STAGES=10)
    assert SPACE.refusal(chosen, problem, H200) is None
    refusal = SPACE.refusal(Config.of(dict(chosen) | changes), problem, H200)
    assert refusal is not None
    assert refusal.startswith(rule), refusal


@pytest.mark.parametrize(
    ("problem", "spilled", "kept"),
    [
        # An LHS in registers, beside four blocks on an SM and two; and beside threads that store C, and are realigned.
        (Problem(16, 8192, 8192), {"SWAP_AB": 1, "BM": 24, "BN": 128, "MIN_BLOCKS": 4}, {"BM": 16}),
        (Problem(999, 1000, 999), {"SWAP_AB": 1, "BM": 72, "BN": 128, "MIN_BLOCKS": 2}, {"BM": 64}),
        (Problem(1000, 999, 999, trans_a=True), {"BM": 192, "BN": 144, "CONSUMERS": 3}, {"BN": 128}),
        (Problem(1000, 999, 999, trans_a=True), {"BM": 64, "BN": 80, "REALIGN": 2}, {"BN": 64}),
        # An LHS in shared memory beside threads that store C.
        (Problem(999, 999, 999), {"SWAP_AB": 1, "BM": 160, "BN": 192, "CONSUMERS": 3}, {"BM": 192}),
    ],
)
def test_tf32_tiles_that_spill_are_refused_and_those_beside_them_are_not(
    problem: Problem, spilled: dict[str, int], kept: dict[str, int]
) -> None:
    problem = replace(problem, precision="tf32")
    holds = SPACE.rules["more accumulators a thread than leave registers for the rest"]
    assert not holds(tile(problem, **spilled), problem, H200)
    assert holds(tile(problem, **spilled | kept), problem, H200)


def test_lines_that_32_bits_do_not_count_are_packed() -> None:
    problem = Problem(64, 3, 2**23 + 1, dtype="bfloat16", trans_b=True)
    assert not any(chosen["REALIGN"] for chosen in SPACE.legal(problem, H200))
    assert any(chosen["REALIGN"] for chosen in SPACE.legal(replace(problem, k=2**20 + 1), H200))


@pytest.mark.parametrize(
    ("problem", "more"),
    [
        (Problem(100, 51, 333, dtype="bfloat16"), 1024 + 1024),  # A's rows along k, B's k along its columns
        (Problem(100, 51, 333, dtype="bfloat16", trans_b=True), 1024 + 1024),
        (Problem(101, 51, 334, precision="tf32", trans_a=True), 1024 + 1024),  # 32 lines take as much as 64
        (Problem(100, 51, 334, precision="tf32", trans_a=True), 1024),  # B's are turned, A goes into registers
        (Problem(104, 51, 336, dtype="bfloat16", trans_a=True), 1024),  # B alone
    ],
)
def test_realigned_lines_take_16_bytes_more_and_no_tensor_map(problem: Problem, more: int) -> None:
    which = not_for_tma(Config.of({"SWAP_AB": 0}), problem)
    config = tile(problem, REALIGN=which, STAGES=3)
    assert stage_bytes(config, problem) == 128 * 128 + more
    assert shared_bytes(config, problem) == 3 * (128 * 128 + more + 24) + 16
    one = launch(problem, config)
    assert (one.before, one.workspace_bytes, threads(config)) == ((), 0, 512)
    assert len(one.maps) == (0 if which == 3 else 3)
    assert {each.operand for each in one.maps} <= {"a", "c"}


def test_large_squares_get_two_consumers_clusters_and_blocks_that_stay() -> None:
    chosen = HOPPER.default(CUBE, H200)
    names = ("BM", "BN", "CONSUMERS", "CLUSTER", "STAGES", "SPLIT_K", "BLOCKS")
    assert tuple(chosen[name] for name in names) == (128, 256, 2, 2, 4, 1, 132)
    assert threads(chosen) == 384
    assert shared_bytes(chosen, CUBE) == 4 * (384 * 128 + 16) + 2 * 2 * 8192 + 16
    assert (stage_bytes(chosen, CUBE), accumulators(chosen, CUBE)) == (384 * 128, 128)


def test_few_rows_swap_operands_and_deep_products_split() -> None:
    few = HOPPER.default(Problem(16, 8192, 8192, dtype="bfloat16"), H200)
    assert (few["SWAP_AB"], few["BM"]) == (1, 16)
    deep = HOPPER.default(Problem(64, 64, 131_072, dtype="bfloat16"), H200)
    assert deep["SPLIT_K"] >= 16


@pytest.mark.parametrize(
    ("count", "splits"),
    [(1, SPLITS), (70, (1, 2, 3)), (89, (1, 2, 4)), (100, (1, 2, 5)), (132, (1, 2)), (140, (1,))],
)
def test_k_is_split_where_tiles_fill_few_waves_or_splits_fill_them_better(count: int, splits: tuple[int, ...]) -> None:
    assert useful_splits(count, 132) == splits


def test_few_stages_and_boxes_of_half_a_sector_are_estimated_to_take_longer() -> None:
    problem = Problem(2048, 2048, 2048, dtype="bfloat16", trans_b=True)
    chosen = {**HOPPER.default(problem, H200), "SWAP_AB": 0, "BM": 192, "BN": 192, "CONSUMERS": 3}

    def taken(**changes: int) -> float:
        return seconds(Config.of(chosen | changes), problem, H200)

    assert taken(STAGES=2) > 1.2 * taken(STAGES=3) > taken(STAGES=4)
    assert taken(STAGES=4) == taken(STAGES=8)
    assert taken(BM=128, BN=120, CONSUMERS=2) > taken(SWAP_AB=1, BM=120, BN=128, CONSUMERS=2)


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
def test_stages_are_bounded_by_phases_and_bandwidth(
    problem: Problem, changes: dict[str, int], enough: list[int]
) -> None:
    assert enough_stages(tile(problem, **changes), problem, H200)[-2:] == enough


@pytest.mark.drawn(2)
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
        assert not one.workspace_bytes or one.workspace_bytes > 4 * COUNTERS
        assert seconds(chosen, problem, H200) > 0


@pytest.mark.drawn(2)
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
    lhs, rhs = tile_operands(tile(problem, BM=64, BN=80), problem)
    assert (lhs.operand, lhs.tile, lhs.size, lhs.k_major) == ("a", 64, 100, False) or lhs.k_major
    assert (rhs.operand, rhs.tile, rhs.size, rhs.k_major) == ("b", 80, 200, True)
    lhs, rhs = tile_operands(tile(problem, SWAP_AB=1, BM=80, BN=128), problem)
    assert (lhs.operand, lhs.tile, rhs.operand, rhs.tile) == ("b", 128, "a", 80)


def test_operand_along_k_is_one_box_and_across_k_several() -> None:
    problem = Problem(100, 200, 304, 3, dtype="float16", trans_a=True, trans_b=True)
    lhs, rhs, out = launch(problem, tile(problem, BM=128, CONSUMERS=2, BN=96, CLUSTER=2)).maps
    # A is k x m and copied, as 100 elements are no whole 16 bytes; B's 96 rows are brought by two blocks.
    assert (lhs.operand, lhs.sizes, lhs.strides) == ("workspace", (304, 100, 3), (640, 64_000))
    assert (lhs.box, lhs.offset) == ((64, 128, 1), 4 * COUNTERS)
    assert (rhs.operand, rhs.sizes, rhs.strides, rhs.box) == ("b", (304, 200, 3), (608, 121_600), (64, 48, 1))
    assert (out.operand, out.sizes, out.box, out.swizzle) == ("c", (200, 100, 3), (32, 64, 1), 64)
    across = replace(problem, m=104, trans_b=False)
    lhs, rhs, _ = launch(across, tile(across, BM=128, CONSUMERS=2, BN=96, CLUSTER=2)).maps
    assert (lhs.sizes, lhs.strides, lhs.box, lhs.swizzle) == ((104, 304, 3), (208, 63_232), (64, 64, 1), 128)
    assert (rhs.sizes, rhs.strides, rhs.box, rhs.swizzle) == ((200, 304, 3), (400, 121_600), (32, 32, 1), 64)


def test_halves_are_read_from_scratch_low_ones_behind_high_ones() -> None:
    problem = Problem(100, 200, 300, 2, precision="emulated", trans_a=True)
    one, split = launch(problem, tile(problem)), split_operands(problem)
    lhs, rhs, _ = one.maps
    assert (lhs.element, lhs.sizes, lhs.strides) == ("float16", (640, 100, 2), (1280, 128_000))
    assert (lhs.offset, rhs.offset) == (128 * split.at_a, 128 * split.at_b)
    assert one.scalars[:6] == split.scalars
    assert (one.verdict_at, one.before) == (split.verdict_at, split.before)


def test_many_splits_leave_sums_behind_what_is_packed_and_are_added_up_after() -> None:
    problem = Problem(100, 33, 1000, 2, dtype="bfloat16")
    config = tile(problem, BN=48, SPLIT_K=16)
    one = launch(problem, config)
    made = packing.packed_k_major(problem, packing.B, 4 * COUNTERS // 128)
    own = (*made.scalars, 16, made.end, 1, 1, 64)
    assert one.scalars == (*own, *tile_order(2, 1, 16, 1))
    assert one.workspace_bytes == made.end * 128 + 2 * 16 * 100 * 40 * 4
    assert partials_bytes(config, problem, 16) == 2 * 16 * 100 * 40 * 4
    assert [step.build.entry for step in (*one.before, *one.after)] == ["pack_k_major", "split_k_reduce"]
    assert one.after[0].grid == 2 * -(-100 * 40 // (256 // 8 * 4))
    assert splits_of(config, problem) == 16


def test_few_splits_of_a_tile_with_registers_left_are_added_up_by_its_last_block() -> None:
    problem = Problem(100, 33, 1000, 2, dtype="bfloat16")
    config = tile(problem, BN=48, SPLIT_K=4)
    one = launch(problem, config)
    assert one.workspace_bytes == one.scalars[5] * 128 + 2 * 2 * 4 * 64 * 48 * 4
    assert [step.build.entry for step in (*one.before, *one.after)] == ["pack_k_major"]
    for others, joined in (
        ({"SPLIT_K": 8}, True),
        ({"SPLIT_K": 12}, False),
        ({"BN": 128}, True),
        ({"BN": 136}, False),
        ({"BM": 192, "CONSUMERS": 3}, False),
    ):
        made = tile(problem, **{"BN": 48, "SPLIT_K": 4} | others)
        assert is_reduced_in_launch(made, problem, made["SPLIT_K"]) == joined, others
    large = Problem(8192, 8192, 1024, dtype="bfloat16")
    assert not split_fits(tile(large, BN=64, SPLIT_K=2), large, 2)  # 16,384 tiles have two counters each


def test_blocks_that_stay_have_as_many_rounds_as_all_sms_would() -> None:
    problem = replace(CUBE, m=128 * 65, n=256)
    chosen = tile(problem, BM=64, BN=256, STAGES=4)
    assert work_tiles(chosen, problem) == tiles(chosen, problem) == 130
    assert SPACE.refusal(Config.of(dict(chosen) | {"BLOCKS": 128}), problem, H200) is not None
    assert (stages_fit(chosen, problem, H200), swizzle_bytes(80, 2)) == (5, 32)


def test_a_box_of_c_has_as_many_columns_as_are_stored_at_once_or_divides_a_small_tile() -> None:
    tf32 = replace(CUBE, dtype="float32", precision="tf32")
    found = [store_box_columns(tile(CUBE, BN=columns), CUBE) for columns in (176, 136, 128, 96, 72, 64, 48, 32, 40)]
    assert found == [64, 64, 64, 32, 8, 64, 16, 32, 8]
    assert [store_box_columns(tile(tf32, BN=columns), tf32) for columns in (176, 72, 64, 48, 24)] == [32, 32, 32, 16, 8]


def test_consumers_take_tiles_in_turn_where_these_have_64_rows_and_each_block_has_several() -> None:
    cube, turns = replace(CUBE, m=2048, n=2304), tile(CUBE, BM=64, BN=192, CONSUMERS=2, BLOCKS=132, STAGES=5)
    assert (is_pingpong(turns), sharers(turns), accumulators(turns, cube)) == (True, 1, 96)
    assert SPACE.refusal(turns, cube, H200) is None
    for others in ({"CLUSTER": 2}, {"SPLIT_K": 2}, {"CLUSTER_K": 2}, {"CONSUMERS": 3}):
        assert SPACE.refusal(Config.of(dict(turns) | others), cube, H200) is not None, others
    few = replace(CUBE, m=2048, n=768)
    assert "in blocks that have one tile" in str(SPACE.refusal(Config.of(dict(turns) | {"BLOCKS": 0}), few, H200))


def test_tf32_packs_its_right_side_only_where_it_must() -> None:
    swapped, upright = Config.of({"SWAP_AB": 1}), Config.of({"SWAP_AB": 0})
    found = {}
    for turned in TRANSPOSITIONS:
        problem = Problem(1024, 1024, 1024, precision="tf32", trans_a=turned[0], trans_b=turned[1])
        found[turned] = not_for_tma(upright, problem), not_for_tma(swapped, problem)
        chosen = HOPPER.default(problem, H200)
        assert chosen["PACK_K"] | chosen["REALIGN"] == found[turned][chosen["SWAP_AB"]]
        assert (chosen["PACK_K"] | chosen["REALIGN"] == 0) == (0 in found[turned])
    wanted = {(False, False): (2, 0), (False, True): (0, 0), (True, False): (2, 1), (True, True): (0, 1)}
    assert found == wanted


def test_every_width_of_a_tile_has_its_registers() -> None:
    assert set(SPACE.parameters["BM"]) | set(SPACE.parameters["BN"]) == set(WIDTHS)
    text = wgmma_registers.header()
    for width in WIDTHS:
        own = text.split(f" TILE_N == {width}\n")[1].split("#el")[0]
        assert (own.count('"+f"(acc['), own.count("%")) == (width // 2, width // 2 + 6)
        assert f'#define IN_0 "%{width // 2}"' in own


@pytest.mark.parametrize(
    ("problem", "preferred"),
    [
        (Problem(23, 172, 50, dtype="bfloat16", trans_b=True), False),
        (Problem(7, 182, 16, dtype="float16"), False),
        (Problem(407, 10, 54, 85, dtype="bfloat16", trans_b=True), False),
        (Problem(5162, 170, 17, precision="tf32", trans_a=True), False),
        (Problem(22, 3742, 10679, dtype="bfloat16", trans_b=True), False),
        (Problem(11, 1577, 1968, dtype="float16", trans_a=True), True),
        (Problem(608, 48, 4397, dtype="float16", trans_b=True), True),
        (Problem(1023, 1023, 1023, dtype="bfloat16"), True),
        (Problem(22, 3744, 10688, dtype="bfloat16", trans_b=True), True),
        (Problem(2047, 2049, 2051, precision="tf32"), True),
        (Problem(2047, 2049, 2051, precision="emulated"), True),
    ],
)
def test_untuned_it_leaves_ragged_operands_to_tensor_core_where_that_is_the_faster_one(
    problem: Problem, *, preferred: bool
) -> None:
    assert HOPPER.preferred_untuned(problem, H200) is preferred
