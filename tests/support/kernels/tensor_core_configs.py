"""Configs and devices for tests of the kernels on tensor cores, and launches of configs whatever rules say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from app.dtypes import numpy_dtype
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from kernels.tensor_core import TENSOR_CORE
from kernels.tensor_core.space import SPACE
from tests.support.kernels.devices import H200
from tests.support.kernels.pocl_runner import Array, operands, reference


def device(architecture: str, sms: int, shared_bytes: int, threads_per_sm: int = 2048) -> Device:
    limits = replace(H200.limits, sms=sms, shared_bytes=shared_bytes, threads_per_sm=threads_per_sm)
    own = replace(limits, shared_bytes_per_sm=shared_bytes + 1024, blocks_per_sm=threads_per_sm // 64)
    return replace(H200, architecture=architecture, limits=own)


DEVICES = {
    "sm_80": device("sm_80", 108, 163 * 1024),
    "sm_86": device("sm_86", 84, 99 * 1024, 1536),
    "sm_89": device("sm_89", 128, 99 * 1024, 1536),
    "sm_90": H200,
    "sm_100": device("sm_100", 148, 227 * 1024),
    "sm_120": device("sm_120", 170, 99 * 1024, 1536),
}
BASE = {
    "BM": 32,
    "BN": 32,
    "WM": 16,
    "WN": 16,
    "BK": 32,
    "SLICE_K": 1,
    "CLUSTER_K": 1,
    "AHEAD": 1,
    "MIN_BLOCKS": 1,
    "STAGES": 3,
    "PACK_K": 0,
    "REALIGN": 0,
    "CP_SIZE_A": 16,
    "CP_SIZE_B": 16,
    "GROUP_M": 1,
    "SPLIT_K": 1,
}


def tile(**values: int) -> Config:
    return SPACE.config(BASE | values)


def planned(chosen: Config, problem: Problem, kernel: Kernel = TENSOR_CORE) -> Launch:
    """The launch of a config, legal or not: what rules refuse for its speed alone is right too."""
    free = replace(kernel, space=replace(kernel.space, rules={}))
    return free.launch(chosen, problem, H200)


def rounded(problem: Problem, a: Array, b: Array) -> Array:
    """The product of integers: exact in float32, and rounded once to C's dtype."""
    return np.asarray(reference(problem, a, b).astype(numpy_dtype(problem.dtype)))


def expect_nan_in_its_row(launch: Launch, interpreted: Callable[..., tuple[Array, int]]) -> None:
    """Expect a NaN of A in its row of C alone, and no NaN where padding's zeros meet infinities, interpreted."""
    problem, row = launch.problem, launch.problem.m - 1
    a, b = operands(problem, np.random.default_rng(11))
    a[0, row, -1] = np.nan
    c, _ = interpreted(launch, a, b, H200)
    assert np.isnan(c[0, row]).all()
    assert np.isfinite(c[0, :row]).all()
    c, _ = interpreted(launch, np.ones_like(a), np.full_like(b, np.inf), H200)
    assert (c == np.inf).all()
