"""Banks of shared memory on every architecture, from sm_80 to sm_120: of each one's own PTX, interpreted.

They are those of kernels whose blocks read k tiles from shared memory; hopper and double_hopper, of sm_90 alone, have
tests of their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.kernels.devices import H200, TRANSPOSITIONS
from tests.support.kernels.pocl_runner import operands, reference

interpreter = pytest.importorskip("tests.ptx_interpreter.launches")

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
# Problems whose defaults have several k tiles at twice their k, and are legal there.
PROBLEMS = {
    "tiled": Problem(32, 32, 16),
    "register_tiled": Problem(64, 64, 64),
    "pipelined": Problem(64, 64, 64),
    "skinny": Problem(4, 64, 256),
    "batched": Problem(32, 32, 32, batch=4),
    "tall": Problem(1024, 16, 64),
    "wmma": Problem(32, 32, 32, dtype="float16"),
    "tensor_core": Problem(64, 64, 64, dtype="float16"),
    "double_tensor": Problem(64, 64, 64, dtype="float64"),
    "direct_double": Problem(32, 32, 64, dtype="float64"),
}
CASES = [
    (architecture, name, turned)
    for architecture in ARCHITECTURES
    for name, problem in PROBLEMS.items()
    for turned in range(4)
    if CATALOGUE[name].covers(problem, replace(H200, architecture=architecture))
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("architecture", "name", "turned"), CASES)
def test_threads_that_read_a_k_tile_meet_on_no_bank(architecture: str, name: str, turned: int) -> None:
    """Twice the k tiles meet no more often: only sums of slices, at the end, may."""
    kernel, device = CATALOGUE[name], replace(H200, architecture=architecture)
    trans_a, trans_b = TRANSPOSITIONS[turned]
    problem = replace(PROBLEMS[name], trans_a=trans_a, trans_b=trans_b)
    config, met = kernel.default(replace(problem, k=2 * problem.k), device), []
    for times in (2, 4):
        deep = replace(problem, k=times * problem.k)
        launch = kernel.for_problem(kernel.launch(config, replace(problem, k=2 * problem.k), device), deep)
        a, b = operands(deep, np.random.default_rng(11), integers=True)
        c, conflicts = interpreter.interpreted(launch, a, b, device)
        assert np.array_equal(c, reference(deep, a, b))
        met.append(conflicts)
    assert met[0] == met[1]
