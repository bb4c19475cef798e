"""tall where operands are read ahead, which only CUDA does: what NVRTC makes of it, interpreted."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace

import numpy as np
import pytest

from kernels.problem import Problem
from kernels.tall import TALL
from kernels.tall.plan import short_and_long_tile, threads
from kernels.tall.space import SPACE
from tests.support.kernels.devices import DTYPES, H200, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.shares import share_of

interpreted = pytest.importorskip("tests.ptx_interpreter.launches").interpreted
SHAPES = [(131072, 64, 64), (262144, 16, 32), (100000, 33, 100), (65536, 128, 512)]


def right_around_its_own_edges(dtype: str, draw: random.Random, rng: np.random.Generator) -> None:
    """Phases copied ahead, their places used again, operands read past the end of a phase, a tile, or what is kept."""
    m, n, k = draw.choice(SHAPES)
    m, n = draw.choice(((m, n), (n, m)))
    turned = draw.choice(TRANSPOSITIONS)
    base = Problem(m, n, k, dtype=dtype, trans_a=turned[0], trans_b=turned[1])
    chosen = draw.choice([each for each in SPACE.legal(base, H200) if threads(each) <= 64])
    (short, long), bk = short_and_long_tile(chosen), chosen["BK"]
    long, short = draw.choice((1, long, 2 * long + 5)), draw.choice((7, short, short + 4))
    deep = chosen["DEPTH"] + bk + 3 if chosen["DEPTH"] <= 32 else 3 * bk + 3
    k = draw.choice((3, bk, 2 * bk + 4, deep)) if long * short < 5000 else bk + 3
    m, n = (short, long) if chosen["KEEP_A"] else (long, short)
    problem = replace(base, m=m, n=n, k=k, batch=draw.choice((1, 2)))
    a, b = operands(problem, rng, integers=True)
    launch = TALL.for_problem(TALL.launch(chosen, base, H200), problem)
    c, conflicts = interpreted(launch, a, b, H200, draw.choice((0, 8)))
    assert (c == reference(problem, a, b)).all(), (chosen, problem.key)
    assert conflicts == 0, (chosen, problem.key)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_copied_and_read_ahead_is_right_as_interpreted(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    right_around_its_own_edges(dtype, random.Random(seed), np.random.default_rng(seed))  # noqa: S311


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_configs_are_right_as_interpreted(dtype: str) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw, rng = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - configs, not secrets
    for _ in range(share_of(20)):
        right_around_its_own_edges(dtype, draw, rng)
