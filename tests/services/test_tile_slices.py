"""Walks whose first tiles' panels come in slices of k: which they are, and that the service adds slices up."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.matmul.tiles.forecast import Walk
from app.services.matmul.tiles.memory import tiles_of
from app.services.matmul.tiles.slices import walk_pairs
from app.services.service import Service
from kernels.problem import Problem
from tests.services.test_tiling import made, of_gpus, small

__all__ = ["small"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trans_a", "trans_b", "kept"), [(False, False, "b"), (True, False, "a"), (True, True, "a")])
def test_the_first_two_tiles_come_in_slices_of_k(dtype: str, trans_a: bool, trans_b: bool, kept: str) -> None:
    """Both have a panel that is kept, of which slices of k are runs of memory."""
    problem = Problem(32768, 32768, 32768, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
    found = of_gpus(2**34).overlapped(problem, 7000) or ()
    assert [bool(one.slices) for one in found[:3]] == [True, True, False]
    first, second = ((one.row, one.column) for one in found[:2])
    assert first["ab".index(kept)] == second["ab".index(kept)]
    last = found[-1]
    assert last.rows * last.columns <= found[0].rows * found[0].columns // 7, "for the last C nothing is left to wait"


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(Problem(32768, 32768, 32768, dtype="bfloat16"), id="sums-in-16-bits"),
        pytest.param(Problem(32768, 32768, 32768, precision="emulated"), id="emulated"),
        pytest.param(Problem(32768, 32768, 32768, dtype="float64", trans_b=True), id="both-stored-along-k"),
        pytest.param(Problem(32768, 32768, 32761, dtype="float64"), id="rows-not-aligned"),
    ],
)
def test_where_slices_are_not_added_up_exactly_or_cheaply_tiles_begin_in_a_corner(problem: Problem) -> None:
    assert not any(one.slices for one in of_gpus(2**34).overlapped(problem, 7000) or ())


def counted_sums(held: Any, link: Any) -> int:
    """How often the worker has added a slice up since this was first asked."""
    del link
    backend = held.backend
    if "run" not in vars(backend):
        run, backend.sums = backend.run, 0

        def counted(program: Any, launch: Any, operands: Any) -> None:
            backend.sums += launch.kernel == "accumulate"
            run(program, launch, operands)

        backend.run = counted
    return int(backend.sums)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (True, False), (True, True)])
def test_tiles_whose_panels_come_in_slices_of_k_are_right(
    small: Service, monkeypatch: pytest.MonkeyPatch, dtype: str, trans_a: bool, trans_b: bool
) -> None:
    problem = Problem(300, 340, 512, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
    inner, outer = (
        tuple(range(at, min(at + 96, size)) for at in range(0, size, 96))
        for size in ((340, 300) if trans_a else (300, 340))
    )
    walk = Walk(walk_pairs(inner, outer, (inner[0][:64], inner[0][64:])), ((128, 128, 256), (256, 256)))
    monkeypatch.setattr(small.matmul.memory, "tiles", lambda asked: tiles_of(asked, walk))
    worker = small.fleet.unit().products
    assert made(small, problem).tiles == 4 * 4 + 1
    before = worker.call(counted_sums)
    made(small, problem)
    assert worker.call(counted_sums) - before == 2 + 1, "the first slice of either is no sum"
