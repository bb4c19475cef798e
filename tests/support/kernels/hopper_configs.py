"""Launches of hopper for its tests: a config by the few values that matter, whether the space would have it or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.dtypes import numpy_dtype
from kernels.fp32_emulation import PROMOTIONS
from kernels.hopper import HOPPER
from kernels.hopper.plan import emulated, is_pingpong
from kernels.hopper.space import SPACE, not_for_tma
from kernels.launch import Build, Launch, dtype_macros
from kernels.packing import is_c_ragged
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200 as PLAIN

Array = np.ndarray[Any, np.dtype[Any]]
_LIMITS = replace(PLAIN.limits, tensor_float16=989e12, tensor_bfloat16=989e12, tensor_tf32=494e12)
H200 = replace(PLAIN, limits=_LIMITS)
SMALL = {
    "BM": 64,
    "BN": 64,
    "CONSUMERS": 1,
    "MIN_BLOCKS": 1,
    "CLUSTER": 1,
    "CLUSTER_K": 1,
    "STAGES": 2,
    "SPLIT_K": 1,
    "GROUP_M": 1,
}
CLASSES = (("float16", "strict"), ("bfloat16", "strict"), ("float32", "tf32"), ("float32", "emulated"))
SHAPES = (
    (4096, 4096, 4096, 1),
    (512, 512, 512, 1),
    (16, 8192, 8192, 1),
    (4096, 16, 4096, 1),
    (64, 64, 131_072, 1),
    (16, 16, 16, 4096),
    (1023, 1023, 1023, 1),
)


def shapes(dtype: str, precision: str) -> list[Problem]:
    """Problems of a class that hopper covers, square and not."""
    every = [Problem(*shape, dtype=dtype, precision=precision) for shape in SHAPES]
    return [problem for problem in every if HOPPER.covers(problem, H200)]


def tile(problem: Problem, **values: int) -> Config:
    """A config with what the problem's class asks for, and small in all that is not given."""
    given: dict[str, int] = SMALL | {"SWAP_AB": 0, "REALIGN": 0, "BLOCKS": 0} | values
    own = {
        "BK": 32 if problem.precision == "tf32" else 64,
        "TMA_STORE": int(not is_c_ragged(problem)),
        "PROMOTE_K": PROMOTIONS[0] if emulated(problem) else 0,
        "PACK_K": not_for_tma(Config.of(given), problem) & ~given["REALIGN"],
        "C_IN_STAGES": int(given["BLOCKS"] == 0 and given["MIN_BLOCKS"] == 1 and not is_pingpong(Config.of(given))),
    }
    chosen = given | own | values
    return Config.of({name: chosen[name] for name in SPACE.parameters})


def launch(problem: Problem, config: Config) -> Launch:
    """The config's launch, without asking the space."""
    kept = ((name, str(value)) for name, value in config.items() if name not in HOPPER.arguments)
    build = Build(HOPPER.name, HOPPER.text, "matmul", (*kept, *dtype_macros(problem)), HOPPER.dynamic_smem)
    return HOPPER.for_problem(Launch(HOPPER.name, config, problem, build, 0, (0, 0), 0), problem)


def rounded(problem: Problem, exact: Array) -> Array:
    """A float64 product as C has it: rounded to float32, and to C's dtype."""
    return exact.astype(np.float32).astype(numpy_dtype(problem.dtype))
