"""What hopper multiplies, by its interpreted PTX: every class, order, tile and edge, among NaN, warps running ahead."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.launch import Launch
from kernels.problem import Problem
from tests.support.kernels.devices import H200, TRANSPOSITIONS
from tests.support.kernels.hopper_configs import launch, rounded, tile
from tests.support.kernels.pocl_runner import operands, reference

interpreted = pytest.importorskip("tests.ptx_interpreter.launches").interpreted

HALF: dict[str, Any] = {"dtype": "bfloat16"}
TF32: dict[str, Any] = {"dtype": "float32", "precision": "tf32"}
SPLIT: dict[str, Any] = {"dtype": "float32", "precision": "emulated"}
PAIR = {"BM": 128, "CONSUMERS": 2}
UPSIDE = {"SWAP_AB": 1, "BN": 64}


def orders(turned: tuple[bool, bool]) -> dict[str, Any]:
    return dict(zip(("trans_a", "trans_b"), turned, strict=True))


def expect_exact(problem: Problem, **values: int) -> int:
    """Small integers, whose sums are exact, with blocks and warps in an order at random; conflicts are returned."""
    return expect_launch_exact(launch(problem, tile(problem, **values)))


def expect_launch_exact(chosen: Launch) -> int:
    """As `expect_exact`."""
    problem, seed = chosen.problem, secrets.randbits(32)
    print(f"seed {seed}")
    a, b = operands(problem, np.random.default_rng(seed), integers=True)
    c, conflicts = interpreted(chosen, a, b, H200, draw=random.Random(seed))  # noqa: S311 - an order, not a secret
    differing = int((c != rounded(problem, reference(problem, a, b))).sum())
    assert not differing, f"{differing} elements of {problem.key} are wrong with {chosen.config}"
    return int(conflicts)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (HALF, {"BM": 64, "BN": 32, "CONSUMERS": 2, "STAGES": 3}),
        (HALF, UPSIDE | {"BM": 40, "CONSUMERS": 2, "STAGES": 5}),
        (HALF, {"BM": 64, "BN": 24, "CONSUMERS": 3, "STAGES": 2}),
        (TF32, {"BM": 64, "BN": 32, "CONSUMERS": 2, "STAGES": 4}),
    ],
    ids=["two", "swapped", "three", "tf32"],
)
def test_consumers_take_tiles_in_turn(kind: Any, own: dict[str, int], blocks: int) -> None:
    expect_exact(Problem(130, 90, 264, trans_b=True, **kind), BLOCKS=blocks, **own)
    expect_exact(Problem(64, 24, 64, 2, trans_b=True, **kind), BLOCKS=blocks, **own)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_half_operands_are_multiplied_in_any_order(turned: tuple[bool, bool], swap: int) -> None:
    own = {"SWAP_AB": 1, "BM": 48, "BN": 64} if swap else {"BN": 48}
    expect_exact(Problem(72, 88, 136, dtype="bfloat16", **orders(turned)), **own)


@pytest.mark.rotating
@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", [HALF, TF32], ids=["bfloat16", "tf32"])
@pytest.mark.parametrize("swap", [0, 1], ids=["upright", "swapped"])
@pytest.mark.parametrize("columns", [72, 136, 168])
def test_threads_store_the_columns_that_are_fewer_than_a_box_has(columns: int, swap: int, kind: Any) -> None:
    own = {"SWAP_AB": swap, "BN" if swap else "BM": 64, "BM" if swap else "BN": columns}
    expect_exact(Problem(152, 152, 40, trans_b=True, **kind), **own)
    expect_exact(Problem(200, 240, 72, trans_b=True, **kind), BLOCKS=2, **own)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", [HALF, TF32], ids=["bfloat16", "tf32"])
@pytest.mark.parametrize("own", [{"BN": 48}, UPSIDE | {"BM": 48}], ids=["upright", "swapped"])
@pytest.mark.parametrize("n", [90, 91])
def test_rows_that_tma_cannot_store_go_by_twos_or_by_the_element(n: int, own: dict[str, int], kind: Any) -> None:
    expect_exact(Problem(72, n, 64, trans_b=True, **kind), **own)


@pytest.mark.slow
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_tf32_operands_of_any_order_have_no_bank_conflicts(turned: tuple[bool, bool]) -> None:
    own = {"BN": 24} if turned[1] else UPSIDE | {"BM": 24}
    assert expect_exact(Problem(76, 68, 100, **TF32, **orders(turned)), **own) == 0


def test_gathering_rows_one_after_the_other_would_meet_on_banks() -> None:
    problem = Problem(24, 64, 64, **TF32)
    chosen = launch(problem, tile(problem, **UPSIDE, BM=24))
    assert expect_launch_exact(chosen) == 0
    spread = "far * 16 + warp % 2 * 8 + (far ^ group_id / 4) * 4"
    assert spread in chosen.build.text
    plain = chosen.build.text.replace(spread, "warp % 2 * 16 + group_id / 2 * 4")
    # Each of 4 warps reads twice for each of 8 steps, in halves.
    assert expect_launch_exact(replace(chosen, build=replace(chosen.build, text=plain))) == 4 * 2 * 8 * 2


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        pytest.param(Problem(65, 33, 70, **HALF), {"BN": 32}, id="ragged"),
        pytest.param(Problem(65, 33, 70, dtype="float16", trans_a=True), UPSIDE | {"BM": 80}, id="ragged-swap"),
        pytest.param(Problem(33, 35, 37, **TF32, trans_a=True), {"BN": 16}, id="ragged-tf32"),
        pytest.param(Problem(40, 24, 16, 3, "float16"), {"BN": 16}, id="batch"),
        pytest.param(Problem(3, 5, 7, 3, "bfloat16"), {"BN": 8}, id="batch-ragged"),
        pytest.param(Problem(1, 136, 200, **HALF), UPSIDE | {"BM": 8, "STAGES": 6}, id="one-row"),
        pytest.param(Problem(72, 40, 450, **HALF), {"BN": 32, "SPLIT_K": 3}, id="slices"),
        pytest.param(Problem(72, 40, 1030, 2, **HALF), {"BN": 32, "SPLIT_K": 8}, id="slices-eight"),
        pytest.param(Problem(72, 40, 1030, **HALF), {"BN": 32, "SPLIT_K": 16}, id="slices-many"),
        pytest.param(Problem(72, 150, 300, **HALF), {"BN": 136, "SPLIT_K": 2}, id="slices-wide"),
        pytest.param(Problem(200, 72, 300, **HALF), PAIR | {"BN": 64, "SPLIT_K": 2, "CLUSTER": 2}, id="slices-cluster"),
        pytest.param(Problem(200, 72, 300, **HALF), PAIR | {"BN": 64, "SPLIT_K": 2, "BLOCKS": 1}, id="slices-stay"),
        pytest.param(Problem(17, 65, 300, **HALF), UPSIDE | {"BM": 16, "SPLIT_K": 2}, id="slices-swap"),
        pytest.param(Problem(20, 70, 330, **TF32), UPSIDE | {"BM": 24, "SPLIT_K": 4}, id="slices-tf32"),
        pytest.param(
            Problem(20, 72, 330, **TF32), UPSIDE | {"BM": 24, "SPLIT_K": 4, "MIN_BLOCKS": 2}, id="slices-tf32-two"
        ),
        pytest.param(Problem(20, 71, 331, **TF32), {"BN": 24, "SPLIT_K": 3, "REALIGN": 3}, id="slices-tf32-realigned"),
        pytest.param(Problem(200, 88, 200, **HALF), PAIR | {"BN": 48, "CLUSTER": 2, "BLOCKS": 2}, id="cluster"),
        pytest.param(Problem(200, 88, 200, **HALF, trans_b=True), PAIR | {"BN": 80, "CLUSTER": 2}, id="cluster-nt"),
        pytest.param(Problem(104, 130, 130, **HALF), UPSIDE | {"BM": 32, "CLUSTER": 2}, id="cluster-of-single"),
        pytest.param(Problem(65, 33, 200, **HALF), {"BN": 32, "CLUSTER_K": 2}, id="cluster-shares-k-ragged"),
        pytest.param(Problem(20, 70, 330, **TF32), UPSIDE | {"BM": 24, "CLUSTER_K": 4}, id="cluster-shares-k-tf32"),
        pytest.param(
            Problem(200, 136, 500, **HALF), PAIR | {"BN": 128, "CLUSTER_K": 2, "STAGES": 3}, id="cluster-shares-k-pair"
        ),
        pytest.param(
            Problem(130, 136, 500, dtype="float16", trans_b=True),
            {"BM": 128, "BN": 80, "CLUSTER_K": 4, "STAGES": 3},
            id="cluster-of-four-shares-k",
            marks=pytest.mark.slow,
        ),
        pytest.param(Problem(40, 24, 16, 3, "float16"), {"BN": 16, "CLUSTER_K": 4}, id="cluster-shares-no-k"),
        pytest.param(
            Problem(17, 65, 300, **HALF),
            UPSIDE | {"BM": 16, "CLUSTER_K": 2},
            id="cluster-shares-k-swap",
            marks=pytest.mark.slow,
        ),
        pytest.param(Problem(200, 72, 80, dtype="float16"), {"BM": 192, "CONSUMERS": 3}, id="three-consumers"),
        pytest.param(Problem(200, 24, 80, **HALF), {"BM": 256, "CONSUMERS": 2, "BN": 16}, id="two-instructions"),
        pytest.param(
            Problem(9, 132, 40, **TF32), PAIR | {"SWAP_AB": 1, "BN": 256, "BM": 16}, id="two-instructions-tf32"
        ),
        pytest.param(Problem(40, 24, 16, 5, "bfloat16"), {"BN": 16, "BLOCKS": 3, "GROUP_M": 8}, id="stays"),
        pytest.param(Problem(16, 16, 16, 9, "float16"), {"BN": 16, "BLOCKS": 1, "MIN_BLOCKS": 4}, id="four-on-an-sm"),
    ],
)
def test_products_are_exact_with_every_value_of_the_space_at_every_edge(
    problem: Problem, values: dict[str, int]
) -> None:
    expect_exact(problem, **values)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        pytest.param(Problem(72, 40, 71, 3, **HALF), {"BN": 32, "REALIGN": 1}, id="beside-tma"),
        pytest.param(Problem(72, 37, 72, 3, **HALF), {"BN": 48, "REALIGN": 2}, id="six-pieces-a-line"),
        pytest.param(Problem(5, 7, 9, 5, **HALF), {"BN": 8, "GROUP_M": 8}, id="a-piece-a-line"),
        pytest.param(Problem(17, 65, 299, **HALF), UPSIDE | {"BM": 16, "SPLIT_K": 2}, id="slices"),
        pytest.param(Problem(65, 33, 71, dtype="float16", **orders((True, True))), {"BN": 32}, id="tt"),
        pytest.param(Problem(17, 65, 99, **HALF, trans_a=True), UPSIDE | {"BM": 32}, id="tn"),
        pytest.param(
            Problem(20, 41, 391, **HALF, trans_b=True), UPSIDE | {"BM": 24, "CLUSTER_K": 2}, id="cluster-shares-k"
        ),
        pytest.param(Problem(40, 23, 17, 5, **HALF), {"BN": 16, "BLOCKS": 3, "GROUP_M": 8}, id="stays"),
        pytest.param(Problem(33, 35, 37, **TF32), {"BN": 16}, id="tf32"),
        pytest.param(Problem(33, 35, 37, **TF32, **orders((True, True))), UPSIDE | {"BM": 24}, id="tf32-tt"),
        pytest.param(Problem(70, 62, 45, **TF32, trans_a=True), UPSIDE | {"BM": 64}, id="tf32-tn"),
        pytest.param(Problem(24, 72, 64, 2, **TF32), {"BN": 32, "REALIGN": 2}, id="tf32-turned-alone"),
        pytest.param(Problem(33, 136, 66, **TF32, trans_b=True), {"BN": 64, "STAGES": 5}, id="tf32-nt"),
    ],
)
def test_rows_that_tma_cannot_load_are_realigned(problem: Problem, values: dict[str, int]) -> None:
    expect_exact(problem, **({"REALIGN": 3} | values))


@pytest.mark.slow
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
@pytest.mark.parametrize(("kind", "columns"), [(HALF, 64), ({"dtype": "float16"}, 48), (TF32, 64), (TF32, 24)])
def test_realigned_tiles_are_exact_in_any_order(turned: tuple[bool, bool], kind: dict[str, Any], columns: int) -> None:
    problem = Problem(131, 2 * columns - 5, 203, **kind, **orders(turned))
    expect_exact(problem, BN=columns, REALIGN=3, STAGES=3)
    expect_exact(problem, SWAP_AB=1, BN=64, BM=48, REALIGN=3, STAGES=4, SPLIT_K=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (Problem(72, 36, 320, **SPLIT), PAIR | {"BN": 32}),
        (Problem(36, 34, 330, **SPLIT, trans_b=True), {"BN": 48, "SPLIT_K": 2}),
        pytest.param(
            *(Problem(20, 66, 260, 2, **SPLIT, trans_a=True, trans_b=True), UPSIDE | {"BM": 24, "PROMOTE_K": 128}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_halves_of_float32_give_products_of_float32s_accuracy(problem: Problem, values: dict[str, int]) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    a, b = operands(problem, np.random.default_rng(seed))
    c, _ = interpreted(launch(problem, tile(problem, **values)), a, b, H200)
    lhs, rhs = (np.swapaxes(x, 1, 2) if turned else x for x, turned in ((a, problem.trans_a), (b, problem.trans_b)))
    exact, magnitudes = reference(problem, a, b), np.abs(lhs).astype(float) @ np.abs(rhs).astype(float)
    # The definition's bound is k 2^-23 (|A||B|); what is seen here is a few roundings.
    assert (np.abs(c - exact) <= 4 * 2.0**-24 * magnitudes).all()


def test_random_tf32_operands_lose_what_rounding_them_to_11_bits_loses() -> None:
    problem = Problem(40, 36, 200, **TF32, trans_b=True)
    a, b = operands(problem, np.random.default_rng(5))
    c, _ = interpreted(launch(problem, tile(problem, BN=24)), a, b, H200)
    exact = reference(problem, a, b)
    error = float(np.linalg.norm(c - exact) / np.linalg.norm(exact))
    assert 1e-4 < error < 5e-4


@pytest.mark.rotating
@pytest.mark.parametrize("values", [{"BN": 32}, UPSIDE | {"BM": 32}])
def test_not_a_number_comes_into_its_row_and_column_alone(values: dict[str, int]) -> None:
    problem = Problem(72, 72, 72, **HALF)
    a, b = operands(problem, np.random.default_rng(6), integers=True)
    a[0, 70, 3], b[0, 71, 4] = np.nan, np.inf
    c, _ = interpreted(launch(problem, tile(problem, **values)), a, b, H200)
    finite = np.isfinite(c[0].astype(np.float32))
    wanted = np.ones((72, 72), np.bool_)
    wanted[70], wanted[:, 4] = False, False
    assert np.array_equal(finite, wanted | (finite & (a[0, :, 71] == 0)[:, None]))


@pytest.mark.slow
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
@pytest.mark.parametrize(
    ("columns", "consumers", "rows"),
    [
        (256, 2, 128),
        (128, 2, 256),
        (144, 2, 256),
        (160, 2, 256),
        (176, 2, 128),
        (168, 1, 64),
        (240, 1, 64),
        (96, 3, 192),
        (112, 1, 128),
    ],
)
def test_large_tiles_are_exact(columns: int, consumers: int, rows: int, turned: tuple[bool, bool]) -> None:
    if columns % 16 and not turned[1]:
        pytest.skip("a side across k is a multiple of 16 columns")
    cluster = 2 if columns % 16 == 0 else 1
    problem = Problem(2 * rows - 8, columns + 8, 200, dtype="float16", **orders(turned))
    expect_exact(problem, BM=rows, BN=columns, CONSUMERS=consumers, CLUSTER=cluster, STAGES=3, BLOCKS=2)


@pytest.mark.slow
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_large_tf32_tiles_are_exact(turned: tuple[bool, bool]) -> None:
    own = PAIR | {"BN": 256} if turned[1] else {"SWAP_AB": 1, "BN": 128, "CONSUMERS": 2, "BM": 256}
    expect_exact(Problem(264, 264, 132, **TF32, **orders(turned)), **own, STAGES=3, CLUSTER=2)
