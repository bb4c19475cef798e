"""Products that exceed what they may take of a GPU, and certificates beside its work."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from app.devices.backend import AsyncExecution, Buffer
from app.dtypes import Array
from app.main import opened
from app.services.matmul.tiles.forecast import Walk
from app.services.matmul.tiles.memory import tiles_of
from app.services.matmul.tiles.slices import walk_pairs
from app.services.service import Service
from app.tuning.verify import tolerance
from kernels.problem import CLASSES, Problem
from tests.support.services.service_settings import settings

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("driver")]
cuda = pytest.importorskip("app.devices.cuda")
CLASS = [(dtype, precision) for dtype, precisions in CLASSES.items() for precision in precisions]
LARGE = Problem(3000, 2500, 1100)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    changed = {"devices": "cuda:0", "slab_bytes": 2**29, "device_bytes": 2**23}
    with opened(settings(tmp_path_factory.mktemp("small")).model_copy(update=changed), "the tests") as service:
        yield service


@pytest.mark.parametrize(("trans_a", "trans_b"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize(("dtype", "precision"), CLASS)
def test_tiles_are_right_and_certified(
    small: Service, dtype: str, precision: str, trans_a: bool, trans_b: bool
) -> None:
    problem = replace(LARGE, dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b)
    a, b = tolerance.operands(problem, seed=3)
    with small.matmul.reserve(problem) as placed:
        placed.a[...], placed.b[...] = a[0], b[0]
        made = small.matmul.multiply(placed, verify="freivalds")
        assert made.tiles > 4
        assert made.certificate is not None
        left, right = tolerance.applied(problem, a, b)
        reference = left.astype(np.float64) @ right.astype(np.float64)
        norm = np.linalg.norm(reference)
        error = np.linalg.norm(placed.c.astype(np.float64) - reference[0]) / norm
    assert error <= tolerance.tolerance(replace(problem, precision=made.precision)).relative_l2


@pytest.mark.parametrize("_round", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (True, False), (True, True)])
def test_tiles_whose_panels_come_in_slices_of_k_are_right(
    small: Service, monkeypatch: pytest.MonkeyPatch, dtype: str, trans_a: bool, trans_b: bool, _round: int
) -> None:
    """In drawn slices: what is added before it is there, or made before it was added, is wrong."""
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)  # noqa: S311 - sizes, no secret
    problem = Problem(3000, 2500, 2048, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
    sides = (problem.n, problem.m) if trans_a else (problem.m, problem.n)
    inner, outer = (tuple(range(at, min(at + 768, size)) for at in range(0, size, 768)) for size in sides)
    cuts = [sorted(rng.sample(range(256, problem.k, 256), rng.randint(1, 6))) for _ in range(2)]
    slices = tuple(tuple(end - at for at, end in pairwise([0, *each, problem.k])) for each in cuts)
    last = inner[-1 if len(outer) % 2 else 0]
    tiles = tiles_of(problem, Walk(walk_pairs(inner, outer, (last[:256], last[256:])), slices))
    monkeypatch.setattr(small.matmul.memory, "overlapped", lambda *_: tiles)
    draw = np.random.default_rng(seed)
    with small.matmul.reserve(problem) as placed:
        placed.a[...] = draw.integers(-8, 8, placed.a.shape)
        placed.b[...] = draw.integers(-8, 8, placed.b.shape)
        assert small.matmul.multiply(placed, kernel="tiled").tiles == len(tiles)
        a, b = placed.a.T if trans_a else placed.a, placed.b.T if trans_b else placed.b
        assert np.array_equal(placed.c, a @ b), "integers are added exactly"


def test_rows_that_lie_apart_are_copied_both_ways_and_are_there_after_a_wait(tmp_path: object) -> None:
    backend: Any = cuda.CudaBackend("cuda:0", tmp_path)
    assert issubclass(cuda.CudaBackend, AsyncExecution), "its copies go on beside launches"
    host = np.arange(64 * 96, dtype=np.uint8).reshape(64, 96)
    window, back = host[:, 10:50], np.zeros_like(host)
    buffer: Buffer = backend.allocate(window.size)
    backend.write_rows(buffer, window, wait=True)
    target: Array = back[:, 3:43]
    backend.read_rows(buffer, target, wait=True)
    assert np.array_equal(target, window)
    assert back.sum(dtype=np.int64) == window.sum(dtype=np.int64)
    backend.close()
