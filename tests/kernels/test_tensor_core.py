"""tensor_core: its products as interpreted, for every dtype, order, edge and way to bring and to add up."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace

import numpy as np
import pytest

from app.dtypes import numpy_dtype
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from kernels.tensor_core import TENSOR_CORE
from kernels.tensor_core.plan import cp_sizes, element_bytes, k_steps, threads
from kernels.tensor_core.space import SPACE
from tests.support.kernels.devices import H200, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import Array, operands, reference
from tests.support.kernels.tensor_core_configs import planned, rounded, tile
from tests.support.shares import share_of

pytest.importorskip("app.devices.cuda")
interpreter = pytest.importorskip("tests.ptx_interpreter.launches")

CLASSES = {"float16": "strict", "bfloat16": "strict", "float32": "tf32", "emulated": "emulated"}


def problem_of(kind: str, turned: int, shape: tuple[int, int, int], batch: int = 1) -> Problem:
    dtype = "float32" if kind == "emulated" else kind
    trans_a, trans_b = TRANSPOSITIONS[turned]
    return Problem(*shape, batch, dtype, CLASSES[kind], trans_a, trans_b)


def interpreted(launch: Launch, a: Array, b: Array, shift: int = 0, draw: random.Random | None = None) -> Array:
    c, _ = interpreter.interpreted(launch, a, b, H200, shift, draw)
    return np.asarray(c)


# Tiles that are whole and not, rows of whole 16 bytes and not, bases that start there and not, phases that are whole
# and fewer than stages; lines of 32 bytes and of 256; one team and four; operands read ahead and not.
CASES = {
    "float16-nn": ("float16", tile(), 0, (40, 64, 72), 2, 0),
    "float16-nt-shifted": ("float16", tile(), 1, (33, 40, 72), 1, 8),
    "float16-tn-element": ("float16", tile(STAGES=2), 2, (35, 33, 37), 2, 0),
    "float16-tt-wide": ("float16", tile(BN=128, WN=64, BK=64, STAGES=2), 3, (24, 136, 136), 1, 0),
    "float16-nn-tall": ("float16", tile(BM=128, WM=64, BN=16, BK=16, AHEAD=0, STAGES=4), 0, (136, 16, 100), 1, 0),
    "float16-nt-deep": ("float16", tile(BM=16, BN=64, WN=32, BK=128, SLICE_K=4, STAGES=2), 1, (5, 72, 264), 1, 0),
    "float16-tn-aligned": ("float16", tile(BK=64, PACK_K=3), 2, (33, 35, 77), 2, 2),
    "float16-nn-aligned-a": ("float16", tile(PACK_K=1), 0, (40, 40, 77), 1, 0),
    "bfloat16-nn-aligned-b": ("bfloat16", tile(BK=128, STAGES=2, PACK_K=2), 0, (40, 37, 136), 2, 0),
    "bfloat16-nt": ("bfloat16", tile(SLICE_K=2, AHEAD=0), 1, (64, 32, 128), 1, 0),
    "bfloat16-tn": ("bfloat16", tile(BM=64, WM=64), 2, (72, 40, 96), 1, 0),
    "bfloat16-tt-element": ("bfloat16", tile(AHEAD=0), 3, (31, 33, 65), 1, 2),
    "bfloat16-nn-grouped": ("bfloat16", tile(BM=16, BN=16, WM=16, WN=16, GROUP_M=8), 0, (290, 34, 8), 1, 0),
    "float16-nn-split": ("float16", tile(SPLIT_K=3), 0, (20, 40, 390), 1, 0),
    "bfloat16-tt-split-element": ("bfloat16", tile(SPLIT_K=11, PACK_K=3), 3, (33, 31, 1407), 1, 0),
    "float16-nn-realigned": ("float16", tile(REALIGN=3), 0, (33, 35, 77), 2, 2),
    "float16-nt-realigned-b": ("float16", tile(REALIGN=2, BK=64, STAGES=2), 1, (40, 35, 137), 1, 6),
    "float16-tn-realigned": ("float16", tile(REALIGN=3, BK=16, AHEAD=0), 2, (35, 33, 39), 2, 14),
    "bfloat16-tt-realigned-a": ("bfloat16", tile(REALIGN=1, BM=64, WM=32), 3, (67, 32, 40), 1, 0),
    "bfloat16-tn-realigned-split": ("bfloat16", tile(REALIGN=3, SPLIT_K=3, SLICE_K=2, BK=64), 2, (21, 37, 389), 1, 4),
    "float16-nt-realigned-deep": (
        "float16",
        tile(REALIGN=3, BM=16, BK=128, SLICE_K=4, STAGES=2),
        1,
        (5, 41, 263),
        2,
        8,
    ),
    "float16-nn-words": ("float16", tile(CP_SIZE_A=4, CP_SIZE_B=8), 0, (33, 36, 78), 2, 0),
    "float16-tt-words": ("float16", tile(BK=64, STAGES=2, CP_SIZE_A=4, CP_SIZE_B=4), 3, (66, 33, 202), 2, 4),
    "float16-nt-words-shifted": ("float16", tile(CP_SIZE_A=4, CP_SIZE_B=4), 1, (33, 35, 78), 1, 2),
    "bfloat16-tn-words-realigned": ("bfloat16", tile(CP_SIZE_A=4, REALIGN=2, SPLIT_K=2), 2, (38, 33, 260), 2, 8),
    "float32-nt-words": ("float32", tile(BN=64, WN=64, CP_SIZE_A=4, CP_SIZE_B=4), 1, (33, 68, 77), 2, 4),
    "float32-tn-twos": ("float32", tile(BK=16, AHEAD=0, CP_SIZE_A=8, CP_SIZE_B=8), 2, (34, 38, 61), 2, 8),
    "float16-nn-even-rows": ("float16", tile(), 0, (33, 38, 40), 2, 0),
    "float32-nt-even-rows": ("float32", tile(BN=64, WN=64), 1, (20, 70, 33), 1, 8),
    "float32-nn": ("float32", tile(), 0, (40, 36, 72), 2, 0),
    "float32-nt": ("float32", tile(BN=64, WN=64), 1, (33, 68, 40), 1, 4),
    "float32-tn": ("float32", tile(BM=64, WM=64, BK=16), 2, (68, 36, 50), 1, 0),
    "float32-tt": ("float32", tile(BM=16, BK=32, SLICE_K=2), 3, (20, 36, 100), 2, 0),
    "float32-nn-short": ("float32", tile(BN=16, BK=16), 0, (36, 12, 20), 1, 0),
    "float32-tn-short": ("float32", tile(BM=16, BK=16), 2, (12, 36, 20), 1, 0),
    "float32-nn-element": ("float32", tile(), 0, (33, 35, 37), 1, 0),
    "float32-tn-aligned": ("float32", tile(PACK_K=3), 2, (33, 35, 45), 2, 4),
    "float32-nt-split": ("float32", tile(SPLIT_K=2), 1, (20, 36, 260), 2, 0),
    "float16-tt-cluster": ("float16", tile(CLUSTER_K=2, BM=64, WM=64, BK=16, AHEAD=0), 3, (72, 40, 200), 2, 0),
    "bfloat16-nt-realigned-cluster": (
        "bfloat16",
        tile(CLUSTER_K=4, REALIGN=3, SLICE_K=2, BK=64),
        1,
        (21, 37, 709),
        1,
        4,
    ),
    "float32-nn-words-cluster": ("float32", tile(CLUSTER_K=8, BK=16, CP_SIZE_A=4, CP_SIZE_B=8), 0, (33, 10, 301), 1, 0),
    "bfloat16-tt-cluster-split": ("bfloat16", tile(CLUSTER_K=8, SPLIT_K=2, BM=64, WM=32), 3, (40, 16, 997), 1, 0),
    "float16-nn-cluster-short": ("float16", tile(CLUSTER_K=8, BK=32), 0, (24, 32, 72), 2, 0),
    "float16-tn-packed-cluster": ("float16", tile(CLUSTER_K=2, PACK_K=3), 2, (33, 35, 261), 1, 2),
    "float32-nn-realigned": ("float32", tile(REALIGN=3), 0, (33, 35, 77), 2, 4),
    "float32-nt-realigned-a": ("float32", tile(REALIGN=3, BK=64, STAGES=2), 1, (40, 33, 135), 1, 8),
    "float32-tn-realigned": ("float32", tile(REALIGN=3, BM=64, WM=32, BK=16, AHEAD=0), 2, (67, 33, 39), 2, 12),
    "float32-tt-realigned-split": ("float32", tile(REALIGN=3, SPLIT_K=3, SLICE_K=2, BK=32), 3, (21, 38, 390), 1, 0),
    # Sides of three times a power of two, of K-major operands and MN-major ones.
    "float16-nt-three": ("float16", tile(BM=48, BN=96, WM=48, WN=48), 1, (45, 91, 72), 2, 0),
    "bfloat16-tt-three-split": ("bfloat16", tile(BN=48, WN=48, SLICE_K=2, BK=64, SPLIT_K=3), 3, (33, 44, 390), 1, 0),
    "bfloat16-nn-three-packed": ("bfloat16", tile(BM=96, BN=192, WM=48, WN=48, PACK_K=3), 0, (89, 179, 45), 1, 2),
    "float32-nt-three-words": (
        "float32",
        tile(BM=64, BN=96, WM=32, WN=48, BK=16, CP_SIZE_A=4, CP_SIZE_B=4),
        1,
        (60, 92, 77),
        1,
        4,
    ),
    "float32-nt-three-cluster": (
        "float32",
        tile(BM=96, BN=48, WM=48, WN=48, REALIGN=3, CLUSTER_K=2, SLICE_K=2),
        1,
        (90, 43, 133),
        1,
        0,
    ),
    "float16-tn-three": ("float16", tile(BM=96, BN=48, WM=48, WN=48), 2, (90, 45, 72), 1, 2),
    "float16-nn-three-realigned": (
        "float16",
        tile(BM=48, BN=192, WM=48, WN=48, REALIGN=3, BK=64, SLICE_K=2, STAGES=2),
        0,
        (47, 179, 141),
        1,
        6,
    ),
    "float32-tn-three-split": ("float32", tile(BM=192, BN=48, WM=48, WN=48, BK=16, SPLIT_K=2), 2, (180, 44, 265), 1, 0),
    "float32-nn-three-realigned": ("float32", tile(BM=64, BN=96, WM=32, WN=48, REALIGN=3), 0, (61, 91, 77), 2, 4),
    "emulated-nn-three": ("emulated", tile(BM=48, BN=96, WM=48, WN=48, AHEAD=0), 0, (47, 95, 300), 1, 0),
    "float32-tn-realigned-b": ("float32", tile(REALIGN=2, BM=16, BK=64, SLICE_K=4, STAGES=2), 2, (12, 41, 131), 2, 0),
    "emulated-nn": ("emulated", tile(AHEAD=0), 0, (33, 35, 300), 2, 0),
    "emulated-tt": ("emulated", tile(BM=64, WM=64, BK=64, SLICE_K=2, STAGES=2), 3, (66, 30, 257), 1, 4),
    "emulated-tn-split": ("emulated", tile(SPLIT_K=2), 2, (20, 40, 390), 1, 0),
    "emulated-nt-deep": ("emulated", tile(BK=128, STAGES=2), 1, (20, 24, 384), 1, 0),
}


# What another case shows in part, or takes long.
SLOW = {
    "float16-nt-three",
    "bfloat16-nn-three-packed",
    "emulated-nn-three",
    "float16-nt-shifted",
    "float16-nn-aligned-a",
    "float16-tt-wide",
    "float16-tn-aligned",
    "bfloat16-nt",
    "bfloat16-tn",
    "bfloat16-nn-grouped",
    "bfloat16-tt-split-element",
    "float32-nt",
    "float32-nn-short",
    "float32-tn-short",
    "float32-tn-aligned",
    "float32-nt-split",
    "emulated-nn",
    "emulated-nt-deep",
}


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_products_of_integers_are_exact_with_no_race_for_shared_memory(name: str) -> None:
    kind, chosen, turned, shape, batch, shift = CASES[name]
    problem = problem_of(kind, turned, shape, batch)
    launch = planned(chosen, problem)
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    assert np.array_equal(interpreted(launch, a, b, shift), rounded(problem, a, b))
    assert launch.scalars[-8] == chosen["SPLIT_K"]


# Every order of both operands in shared memory, in lines of each length that there is within 128 bytes and past them.
# Two of the four transpositions have each operand in each of its orders.
WHOLE = [
    pytest.param(
        *(kind, turned, chosen),
        id=f"{kind}-{turned}-{chosen['BM']}x{chosen['BN']}x{chosen['BK']}",
        marks=[pytest.mark.slow] if (turned in {0, 3} or chosen["BK"] == 16) and kind != "emulated" else [],
    )
    for kind, shapes in {
        "float16": (
            tile(),
            tile(BM=16, BN=128, WN=64, BK=16, AHEAD=0),
            tile(BM=64, WM=32, BK=128, STAGES=2),
            tile(BM=48, BN=96, WM=48, WN=48),
        ),
        "float32": (tile(), tile(BM=64, BN=16, WM=64, BK=16), tile(BM=48, BN=192, WM=48, WN=48, BK=16)),
        "emulated": (tile(),),
    }.items()
    for turned in range(4 if kind != "emulated" else 1)
    for chosen in shapes
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "turned", "chosen"), WHOLE)
def test_no_read_of_shared_memory_meets_another_on_a_bank(kind: str, turned: int, chosen: Config) -> None:
    deep = 256 if kind == "emulated" else 2 * chosen["BK"]
    problem = problem_of(kind, turned, (chosen["BM"], chosen["BN"], deep))
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, conflicts = interpreter.interpreted(planned(chosen, problem), a, b, H200)
    assert np.array_equal(c, rounded(problem, a, b))
    assert conflicts == 0


def test_the_interpreter_sees_reads_that_meet_on_a_bank() -> None:
    problem = problem_of("float16", 0, (32, 32, 64))
    launch = planned(tile(), problem)
    plain = launch.build.text.replace("((piece) ^ SWIZZLE(y, line, single))", "(piece)")
    plain = plain.replace("(to ^ SWIZZLE(down, line, single) * 16)", "to")
    assert plain != launch.build.text
    a, b = operands(problem, np.random.default_rng(11), integers=True)
    c, conflicts = interpreter.interpreted(replace(launch, build=replace(launch.build, text=plain)), a, b, H200)
    assert np.array_equal(c, rounded(problem, a, b))
    assert conflicts > 0


SHARES = [{"SPLIT_K": 1}, {"SPLIT_K": 2}, {"SPLIT_K": 3, "CLUSTER_K": 1}]


def random_case(draw: random.Random) -> tuple[Config, Problem]:
    """A config that can be launched, and a problem around its tile's edges."""
    while True:
        values = {name: draw.choice(kind) for name, kind in SPACE.parameters.items()}
        chosen = SPACE.config(values | {"MIN_BLOCKS": 1, "GROUP_M": draw.choice((1, 8))} | draw.choice(SHARES))
        kind = draw.choice((*CLASSES, "bfloat16"))
        m, n = (max(1, chosen[side] * draw.choice((1, 1, 2)) + draw.choice((-8, -3, 0, 1, 8))) for side in ("BM", "BN"))
        shares = chosen["SPLIT_K"] * chosen["CLUSTER_K"]
        k = chosen["BK"] * shares * draw.choice((1, 2, 3)) + draw.choice((-8, -7, 0, 0, 3))
        k += 256 * (kind == "emulated")
        problem = problem_of(kind, draw.randrange(4), (m, n, k), draw.choice((1, 1, 2)))
        of_a, of_b = cp_sizes(chosen["PACK_K"], chosen["REALIGN"], problem)
        chosen = SPACE.config(dict(chosen) | {"CP_SIZE_A": of_a, "CP_SIZE_B": of_b})
        launched = problem.batch * -(-m // chosen["BM"]) * -(-n // chosen["BN"]) * shares
        if threads(chosen) * launched <= 1024 and is_sound(chosen, problem):
            return chosen, problem


def is_sound(chosen: Config, problem: Problem) -> bool:
    """Whether what a launch cannot do without holds, whatever is said of its speed."""
    sound = (
        "a tile that is no multiple of its warps' tiles",
        "warps of which there are three",
        "mma steps of a k tile that its slices do not share evenly",
        "AHEAD with an odd number of mma steps in a k tile",
        "more copies",
        "more shared",
        "more registers",
        "realigned lines",
        "splits of k in clusters other than the largest",
        "k with too little for each block of a cluster",
    )
    rules = [rule for reason, rule in SPACE.rules.items() if reason.startswith(sound)]
    assert len(rules) == len(sound)
    return k_steps(chosen, problem) > 0 and all(rule(chosen, problem, H200) for rule in rules)


@pytest.mark.rotating
@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_configs_at_random_are_exact(count: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw, rng = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - configs, not secrets
    for _ in range(share_of(count)):
        chosen, problem = random_case(draw)
        a, b = operands(problem, rng, integers=True)
        shift = element_bytes(problem) * draw.choice((0, 2)) if problem.precision != "emulated" else 0
        c = interpreted(planned(chosen, problem), a, b, shift, draw)
        assert np.array_equal(c, rounded(problem, a, b)), (chosen, problem.key)


@pytest.mark.rotating
@pytest.mark.parametrize("split", [1, 5])
def test_slices_are_added_up_in_one_order_whatever_order_blocks_run_in(split: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    problem = problem_of("float32", 0, (40, 24, 5 * 64))
    launch = planned(tile(SPLIT_K=split if split == 1 else 6, BK=16), problem)
    a, b = operands(problem, np.random.default_rng(seed))
    first = interpreted(launch, a, b)
    again = interpreted(launch, a, b, draw=random.Random(seed))  # noqa: S311 - an order, not a secret
    assert np.array_equal(first, again)


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_nan_stays_in_its_row_and_padding_makes_none_of_infinity(kind: str) -> None:
    problem = problem_of(kind, 0, (33, 17, 19))
    launch = planned(tile(PACK_K=2), problem)
    a, b = operands(problem, np.random.default_rng(11))
    a[0, 32, 18] = np.nan
    c = interpreted(launch, a, b).astype(np.float32)
    assert np.isnan(c[0, 32]).all()
    assert np.isfinite(c[0, :32]).all()
    c = interpreted(launch, np.ones_like(a), np.full_like(b, np.inf)).astype(np.float32)
    assert (c == np.inf).all()


def test_tf32_rounds_operands_to_the_nearest_and_halves_round_c_once() -> None:
    problem = problem_of("float32", 0, (16, 16, 8))
    a, b = (np.zeros((1, *shape), np.float32) for shape in (problem.a_shape, problem.b_shape))
    a[0, :, 0], b[0, 0] = 1 + 2.0**-11, 1  # half way: away from zero
    a[0, 1, 0] = 1 + 2.0**-11 - 2.0**-23
    c = interpreted(planned(tile(BM=16, BN=16), problem), a, b)
    assert (c[0, 0] == 1 + 2.0**-10).all()
    assert (c[0, 1] == 1).all()
    problem = problem_of("float16", 0, (16, 16, 16))
    a, b = operands(problem, np.random.default_rng(3))
    c = interpreted(planned(tile(BM=16, BN=16), problem), a, b)
    # Products of halves are exact in float32, and sums of 16 of them nearly so.
    assert np.abs(c - reference(problem, a, b)).max() <= 2.0**-11 * np.abs(c.astype(np.float64)).max()


@pytest.mark.slow
def test_split_operands_are_as_accurate_as_float32_and_others_are_declined() -> None:
    problem = problem_of("emulated", 1, (33, 30, 512))
    launch = planned(tile(), problem)
    a, b = operands(problem, np.random.default_rng(5))
    c, wide = interpreted(launch, a, b), reference(problem, a, b)
    assert np.linalg.norm((c - wide).ravel()) <= 3e-7 * np.linalg.norm(wide.ravel())
    a[0, 3, 5] = np.inf
    assert np.isnan(interpreted(launch, a, b)).all(), "C is left as it was"


def test_a_class_is_computed_as_it_is_named() -> None:
    split_operands = {("float16", "strict"), ("bfloat16", "strict")}
    assert set(TENSOR_CORE.classes) == split_operands | {("float32", "tf32"), ("float32", "emulated")}
    assert numpy_dtype("float16").itemsize == element_bytes(Problem(1, 1, 1, dtype="float32", precision="emulated"))
