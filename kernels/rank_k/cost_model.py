"""rank_k's cost model: an estimate of a config's time, by which a search begins."""

from __future__ import annotations

from math import fsum, sqrt
from typing import Final

from kernels.cost_model import CLOCK, moved_bytes, turns
from kernels.device import Device
from kernels.packing import HALF_BYTES, A, B, ragged
from kernels.problem import Problem
from kernels.rank_k.plan import registers, shared_bytes, threads
from kernels.rules import FLOAT_BYTES, VECTOR_BYTES, WARP, blocks, real_bytes
from kernels.space import Config

# float32 FMAs of an SM in a clock.
FMAS: Final = 128
# Fitted, as benchmarks/kernels/fit.py does, to 1,479 times of 127 shapes on an H200: seconds of a launch, and the share
# of memory's bandwidth that operands and stored sectors have.
LAUNCH: Final = 1.88e-06
OF_BANDWIDTH: Final = 0.669
# Clocks that a block waits: of each k, each FMA of a thread, each of its copies and each of its stores.
K_CLOCKS: Final = 21.6
FMA_CLOCKS: Final = 1.21
COPY_CLOCKS: Final = 21.6
STORE_CLOCKS: Final = 8.88
# Clocks of an SM: for each FMA of all its threads, and each load of an element, copy and store of a warp; more where a
# store rounds to 16 bits.
ISSUED_FMA: Final = 1.24
ISSUED_LOAD: Final = 0.354
ISSUED_COPY: Final = 4.29
ISSUED_STORE: Final = 1.46
ROUNDED_STORE: Final = 8.21


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    limits, grid = device.limits, blocks(config, problem)
    busy, waves = turns(limits, grid, threads(config), shared_bytes(config, problem), registers(config, problem))
    issued, waited = busy * _issued(config, problem), waves * _waits(config, problem)
    run = config["LANES_N"] * config["RUN_N"] * problem.itemsize
    moved = moved_bytes(run, problem) / (OF_BANDWIDTH * limits.bandwidth)
    return LAUNCH + _overlapping((issued / CLOCK, waited / CLOCK, moved), waves)


def _overlapping(parts: tuple[float, ...], waves: int) -> float:
    """Seconds of parts that overlap the more, the more waves there are.

    The blocks of one wave load, multiply and store at the same time: the root of the sum of squares. Those of many are
    each elsewhere, and the longest part is nearly all that counts.
    """
    power, longest = 1 + sqrt(waves), max(parts)
    norm: float = fsum((each / longest) ** power for each in parts) ** (1 / power)
    return longest * norm


def _issued(config: Config, problem: Problem) -> float:
    """Clocks in which a block's warps issue."""
    words, warps = real_bytes(problem) / FLOAT_BYTES, threads(config) / WARP
    products = config["BM"] * config["BN"] * problem.k * words / FMAS
    loads = warps * problem.k * (config["TM"] + config["TN"]) * words
    store = ISSUED_STORE + ROUNDED_STORE * (problem.itemsize == HALF_BYTES)
    stores = warps * config["TM"] * config["TN"] / config["RUN_N"]
    return ISSUED_FMA * products + ISSUED_LOAD * loads + ISSUED_COPY * _copies(config, problem) + store * stores


def _waits(config: Config, problem: Problem) -> float:
    """Clocks that a block waits if it is alone."""
    own, words = config["TM"] * config["TN"], real_bytes(problem) / FLOAT_BYTES
    copies = COPY_CLOCKS * _copies(config, problem) * WARP / threads(config)
    products = FMA_CLOCKS * own * problem.k * words
    return K_CLOCKS * config["BK"] + products + copies + STORE_CLOCKS * own / config["RUN_N"]


def _copies(config: Config, problem: Problem) -> float:
    """Copies that a block's warps issue: of 16 bytes, or of an element of an operand whose rows are not such."""
    wide, which = VECTOR_BYTES // problem.itemsize, ragged(problem)
    rows = config["BM"] / (1 if which & A else wide)
    columns = config["BN"] / (1 if which & B else wide)
    return (rows + columns) * config["BK"] / WARP
