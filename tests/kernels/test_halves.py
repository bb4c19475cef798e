"""The steps that split float32 operands for tensor cores, and the ground they stand on (kernels.fp32_emulation)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.cuda.nvrtc import compile_cubin
from kernels.fp32_emulation import FILES, LEAST_K, PROMOTIONS, REASONS, SHARE, SplitOperands, reason, slab_of
from kernels.fp32_emulation import split_operands as planned
from kernels.launch import COUNTERS, Launch
from kernels.problem import Problem
from kernels.sources import source
from kernels.space import Config
from tests.ptx_interpreter.machine import Machine
from tests.ptx_interpreter.program import ptx_of
from tests.support.kernels.tensor_core_sums import (
    AMPERE,
    HOPPER,
    VOLTA,
    Array,
    Core,
    bound,
    declined,
    emulated,
    exact,
    halves,
    sequential,
)
from tests.support.pairwise import crossed

GAP = 1024
SIZE = 24
CORES = {"V100": VOLTA, "A100": AMPERE, "H100": HOPPER}
NAMES = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def relative(c: Array, reference: Array) -> float:
    return float(np.linalg.norm((c - reference).astype(np.float64)) / np.linalg.norm(reference.astype(np.float64)))


@pytest.mark.drawn(2)
@NAMES
@pytest.mark.parametrize("promote", PROMOTIONS)
@pytest.mark.parametrize("seed", [1, 2])
def test_normal_operands_are_more_exact_than_sequential_fmas(core: Core, promote: int, seed: int) -> None:
    k = SHARE * promote
    a, b = normal(seed, 2 * SIZE, k), normal(seed + 9, k, 2 * SIZE)
    right = exact(a, b)
    assert relative(emulated(core, a, b, promote), right) <= 0.95 * relative(sequential(a, b), right)


def test_below_the_least_k_tensor_cores_may_lose_more_than_sequential_fmas() -> None:
    a, b = normal(3, 2 * SIZE, 64), normal(4, 64, 2 * SIZE)
    assert relative(emulated(AMPERE, a, b, PROMOTIONS[0]), exact(a, b)) > 1.1 * relative(sequential(a, b), exact(a, b))


Pair = tuple[Array, Array]
Drawn = Callable[[Array, Array, np.random.Generator], Pair]


def cancelling(a: Array, b: Array, _: np.random.Generator) -> Pair:
    half = a.shape[1] // 2
    a[:, half:], b[half:] = a[:, :half], -b[:half] * np.float32(1 + 2**-20)
    return a, b


def wide(a: Array, b: Array, g: np.random.Generator) -> Pair:
    exponents = [g.integers(-26, 1, each.shape) for each in (a, b)]
    left, right = (
        np.sign(each) * np.ldexp(g.uniform(1, 1.99, each.shape), e) for each, e in zip((a, b), exponents, strict=True)
    )
    return left, right


def few_tiny(a: Array, b: Array, g: np.random.Generator) -> Pair:
    a[g.random(a.shape) < 0.01] *= np.float32(2**-40)
    b[g.random(b.shape) < 0.01] *= np.float32(2**-40)
    return a, b


def first_large(a: Array, b: Array, _: np.random.Generator) -> Pair:
    a[:, 0], b[0] = 2048, 2048
    return a, b


def denormal_results(a: Array, b: Array, _: np.random.Generator) -> Pair:
    half = a.shape[1] // 2
    a[:, half:], b[half:] = a[:, :half], -b[:half]
    a[:, 0] *= np.float32(1 + 2**-23)
    return np.ldexp(a, -63), b


# Operands on which sums of halves are as bad as they get.
HOSTILE: dict[str, Drawn] = {
    "cancellation": cancelling,
    "one sign": lambda a, b, _: (np.abs(a) + 1, np.abs(b) + 1),
    "just under a power of two": lambda a, b, _: (np.full_like(a, 2 - 2**-23), np.full_like(b, 2 - 2**-23)),
    "first large": first_large,
    "wide within the range": wide,
    "a few tiny": few_tiny,
    "large against small": lambda a, b, _: (np.ldexp(a, 100), np.ldexp(b, -100)),
    "near overflow": lambda a, b, _: (np.ldexp(a, 54), np.ldexp(b, 54)),
    "denormal results": denormal_results,
    "scattered ones": lambda a, b, g: ((g.random(a.shape) < 0.02) * a, (g.random(b.shape) < 0.02) * b),
}


def hostile(kind: str, seed: int, k: int = LEAST_K) -> Pair:
    a, b = HOSTILE[kind](normal(seed, SIZE, k), normal(seed + 1, k, SIZE), np.random.default_rng(seed))
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.rotating
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("core", [AMPERE, HOPPER], ids=["A100", "H100"])
def test_what_is_not_declined_is_within_the_bound_of_every_element(kind: str, core: Core) -> None:
    for seed in range(3):
        a, b = hostile(kind, seed)
        assert declined(a, b) == 0, seed
        error = np.abs(emulated(core, a, b, PROMOTIONS[0]) - exact(a, b))
        assert (error <= 0.5 * bound(a, b)).all(), seed


@pytest.mark.parametrize("seed", range(4))
def test_operands_drawn_anyhow_are_declined_or_within_the_bound(seed: int) -> None:
    g, kept = np.random.default_rng(seed), 0
    for _ in range(20):
        both, scale = [normal(seed, SIZE // 2, LEAST_K), normal(seed + 1, LEAST_K, SIZE // 2)], int(g.integers(-50, 40))
        for number, more in enumerate((scale, int(g.integers(-30, 30)) - scale)):
            spread, filled = int(g.choice([0, 8, 16, 24, 40])), g.choice([0.1, 0.5, 1])
            one = np.ldexp(both[number], more - g.integers(0, spread + 1, both[number].shape))
            both[number] = (one * (g.random(one.shape) < filled)).astype(np.float32)
        a, b = both
        if declined(a, b) == 0:
            kept += 1
            c = emulated(AMPERE, a, b, PROMOTIONS[0])
            assert np.isfinite(c).all()
            assert (np.abs(c - exact(a, b)) <= bound(a, b)).all()
    assert 4 <= kept < 20


def spoilt(kind: str) -> tuple[Array, Array]:
    a, b = normal(7, SIZE, LEAST_K), normal(8, LEAST_K, SIZE)
    if kind == "not a number":
        b[5, 3] = np.nan
    elif kind == "infinite":
        a[2, 9] = -np.inf
    elif kind == "may overflow":
        a, b = np.ldexp(a, 58), np.ldexp(b, 58)
    elif kind == "scaled back inexactly":
        a, b = np.ldexp(a, -40), np.ldexp(b, -40)
    elif kind == "denormal":
        a = np.ldexp(a, -140)
    elif kind == "one large, the rest tiny":
        a[:, 1:] *= np.float32(2**-40)
        b[0] = 0
    elif kind == "tiny and scattered":
        g = np.random.default_rng(1)
        a, b = (np.ldexp(each, g.integers(-40, 1, each.shape)) * (g.random(each.shape) < 0.3) for each in (a, b))
    return a.astype(np.float32), b.astype(np.float32)


SPOILT = {
    "not a number": 1,
    "infinite": 1,
    "may overflow": 2,
    "scaled back inexactly": 2,
    "denormal": 2,
    "one large, the rest tiny": 4,
    "tiny and scattered": 4,
}


def test_normal_operands_of_any_size_are_practically_never_declined() -> None:
    """A line's largest is under 8 but in one of 10^15 elements: then those under 2^-12 of it are under 2^-9."""
    chance = 2 * 0.3989422804 * 2**-9
    part = sum(comb(256, more) * Fraction(chance) ** more for more in range(17, 257))
    assert float(part) * 2 * 16384 * 16384 / 256 < 1e-13


class Split:
    """What the steps leave in the workspace, interpreted."""

    def __init__(self, problem: Problem, a: Array, b: Array, shift: int = 0, draw: Any = None) -> None:
        self.problem, self.plan = problem, planned(problem)
        starts = [GAP + shift, -(-(2 * GAP + a.nbytes) // 128) * 128 + shift]
        workspace = -(-(starts[1] + b.nbytes + GAP) // 128) * 128
        self.memory = np.full(workspace + 128 * self.plan.end + GAP, 0xFF, np.uint8)
        readable = np.zeros(len(self.memory), np.bool_)
        readable[workspace : workspace + 128 * self.plan.end] = True
        for start, content in zip(starts, (a, b), strict=True):
            self.memory[start : start + content.nbytes] = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
            readable[start : start + content.nbytes] = True
        self.memory[workspace : workspace + 4 * COUNTERS] = 0
        before = self.memory.copy()
        arguments = (*starts, 0, problem.m, problem.n, problem.k, workspace, *self.plan.scalars)
        self.conflicts = 0
        for step in self.plan.before:
            launch = Launch("halves", Config(()), problem, step.build, step.grid, step.block, 0)
            machine = Machine(ptx_of(step.build, "90"))
            order = draw.permutation(step.grid).tolist() if draw else ()
            machine.launch(launch, arguments, self.memory, readable, order)
            self.conflicts += machine.conflicts
        self.workspace = self.memory[workspace : workspace + 128 * self.plan.end]
        outside = np.r_[0 : workspace + 4 * COUNTERS, len(self.memory) - GAP : len(self.memory)]
        assert np.array_equal(self.memory[outside], before[outside]), "something else than the workspace, or a counter"

    @property
    def verdict(self) -> int:
        return int(self.workspace[self.plan.verdict_at :][:4].view(np.uint32)[0])

    def lines(self, which: str) -> tuple[Array, Array, Array]:
        """The planes of an operand, [batch, count, filled up], and its exponents [batch, count]."""
        plan, problem = self.plan, self.problem
        at, at_e, count = (plan.at_a, plan.at_e, problem.m) if which == "a" else (plan.at_b, plan.at_f, problem.n)
        every = problem.batch * count
        rows = (
            self.workspace[128 * at :][: 256 * plan.row * every].view(np.float16).reshape(problem.batch, count, 2, -1)
        )
        exponents = self.workspace[128 * at_e :][: 4 * every].view(np.int32).reshape(problem.batch, count)
        return rows[:, :, 0], rows[:, :, 1], exponents


def stored(problem: Problem, a: Array, b: Array) -> tuple[Array, Array]:
    """op(A) and op(B) as they are stored, [batch, rows, columns]."""
    return (
        np.ascontiguousarray(a.swapaxes(1, 2) if problem.trans_a else a),
        np.ascontiguousarray(b.swapaxes(1, 2) if problem.trans_b else b),
    )


def check_planes(split: Split, a: Array, b: Array) -> None:
    for which, lines in (("a", a), ("b", b.swapaxes(1, 2))):
        found = split.lines(which)
        for number, matrix in enumerate(lines):
            high, low, exponents = halves(np.ascontiguousarray(matrix))
            for plane, expected in zip(found[:2], (high, low), strict=True):
                filled = np.zeros(plane[number].shape)
                filled[:, : expected.shape[1]] = expected
                assert np.array_equal(plane[number].astype(np.float64), filled)
            assert np.array_equal(found[2][number], exponents[:, 0])


@pytest.mark.rotating
@pytest.mark.drawn(2)
@crossed(trans_a=(False, True), trans_b=(False, True), sizes=((66, 5, 261), (2, 3, 517)))
def test_every_storage_and_size_is_split_into_the_same_lines(
    trans_a: bool, trans_b: bool, sizes: tuple[int, int, int]
) -> None:
    batch = 1 if sizes[0] > 2 else 2
    problem = Problem(*sizes, batch, precision="emulated", trans_a=trans_a, trans_b=trans_b)
    m, n, k = sizes
    a, b = normal(5, batch, m, k), normal(6, batch, k, n)
    a[:, 0] *= np.float32(2**90)
    a[:, 1] = 0
    b[:, :, -1] *= np.float32(2**-100)
    split = Split(problem, *stored(problem, a, b), shift=4, draw=np.random.default_rng(3))
    check_planes(split, a, b)
    assert split.verdict == declined(a[0], b[0])


def test_denormal_and_mixed_lines_are_split_as_they_are() -> None:
    problem = Problem(6, 4, 256, precision="emulated", trans_b=True)
    a, b = normal(1, 1, 6, 256), normal(2, 1, 256, 4)
    a[0, 1] = np.ldexp(a[0, 1], -140)
    a[0, 2, 1:] = np.ldexp(a[0, 2, 1:], -140)
    b[0, ::2] = 0
    check_planes(Split(problem, *stored(problem, a, b)), a, b)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("kind", "verdict"), SPOILT.items())
def test_operands_out_of_range_are_declined_with_a_reason(kind: str, verdict: int) -> None:
    a, b = spoilt(kind)
    problem = Problem(SIZE, SIZE, LEAST_K, precision="emulated", trans_b=len(kind) % 2 > 0)
    assert declined(a, b) == verdict
    assert Split(problem, *stored(problem, a[None], b[None])).verdict == verdict
    assert reason(verdict) == REASONS[verdict]


@pytest.mark.rotating
@pytest.mark.parametrize("kind", ["a few tiny", "scattered ones", "near overflow"])
def test_operands_within_range_are_accepted_in_any_block_order(kind: str) -> None:
    a, b = hostile(kind, 1, 520)
    problem = Problem(SIZE, SIZE, 520, precision="emulated", trans_a=True)
    assert Split(problem, *stored(problem, a[None], b[None]), draw=np.random.default_rng(1)).verdict == 0


def test_one_batch_out_of_the_range_declines_all() -> None:
    problem = Problem(5, 4, LEAST_K, 2, precision="emulated")
    a, b = normal(1, 2, 5, LEAST_K), normal(2, 2, LEAST_K, 4)
    b[1, -1, -1] = np.inf
    assert Split(problem, a, b).verdict == 1


def test_squares_pass_through_shared_memory_without_a_conflict() -> None:
    problem = Problem(64, 64, LEAST_K, precision="emulated")
    assert Split(problem, normal(1, 1, 64, LEAST_K), normal(2, 1, LEAST_K, 64)).conflicts == 0


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_both_steps_compile_for_every_architecture_and_spill_nothing(architecture: str, tmp_path: Path) -> None:
    for step in planned(Problem(8, 8, LEAST_K, precision="emulated")).before:
        cubin = compile_cubin(step.build, architecture, tmp_path)
        assert cubin.spills == 0
        assert cubin.registers is not None
        assert cubin.registers <= 80


def test_the_survey_of_a_deep_product_is_in_few_slabs() -> None:
    assert slab_of(256) == slab_of(16384) == 256
    for k in (16385, 100_000, 1_000_003):
        assert slab_of(k) % 64 == 0
        assert k / 64 <= slab_of(k) < k / 64 + 64


def test_several_reasons_are_all_told() -> None:
    assert reason(3) == f"{REASONS[1]}; {REASONS[2]}"
    assert "8" in reason(8)


def test_the_steps_and_what_uses_them_agree_on_where_things_are() -> None:
    plan: SplitOperands = planned(Problem(100, 30, 300, precision="emulated"))
    assert f"#define VERDICT {plan.verdict_at // 4} " in source("common/fp16_terms.h")
    assert plan.at_a * 128 >= plan.verdict_at + 4
    assert [step.build.text for step in plan.before] == [source(file) for file in FILES]
    assert plan.at_b - plan.at_a == 100 * 2 * plan.row == 100 * 2 * 5
