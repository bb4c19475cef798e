"""rank_k's cost model: an estimate of a config's time, by which a search begins."""

from __future__ import annotations

from math import gcd
from typing import Final

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.packing import HALF_BYTES, A, B, ragged
from kernels.problem import Problem
from kernels.rank_k.plan import registers, shared_bytes, threads
from kernels.rules import FLOAT_BYTES, VECTOR_BYTES, WARP, blocks, real_bytes
from kernels.space import Config

# float32 FMAs of an SM in a clock.
FMAS: Final = 128
# Fitted, as benchmarks/kernels/fit.py does, to 2,980 times of 305 shapes on an H200: seconds of a launch, and the share
# of memory's bandwidth that traffic seems to have.
LAUNCH: Final = 1.84e-6
OF_BANDWIDTH: Final = 0.852
# Bytes of traffic that a sector costs which is written in part: caches read or merge the rest of it.
SECTOR_BYTES: Final = 32
BLUNT: Final = 1.5
PARTIAL_BYTES: Final = 19.5
# Clocks that a block waits: of each k, each FMA of a thread and each of its copies, more where elements are of 2 bytes,
# which cp.async does not copy.
K_CLOCKS: Final = 16.1
FMA_CLOCKS: Final = 0.554
COPY_CLOCKS: Final = 21.8
HALF_COPY_CLOCKS: Final = 77.4
# Clocks of an SM: for each FMA of all its threads, and each load of an element, copy and store of a warp; more where a
# store rounds to 16 bits.
ISSUED_FMA: Final = 0.726
ISSUED_LOAD: Final = 0.46
ISSUED_COPY: Final = 0.7
ISSUED_STORE: Final = 2.13
ROUNDED_STORE: Final = 2.61


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    limits, grid = device.limits, blocks(config, problem)
    busy, waves = turns(limits, grid, threads(config), shared_bytes(config, problem), registers(config, problem))
    waits = _waits(config, problem)
    issued = (busy * _issued(config, problem) + (waves - 1) * waits) / CLOCK
    moved = problem.bytes + PARTIAL_BYTES * _partial_sectors(config, problem)
    streamed = moved / (OF_BANDWIDTH * limits.bandwidth)
    together: float = (issued**BLUNT + streamed**BLUNT) ** (1 / BLUNT)
    return LAUNCH + waits / CLOCK + together


def _partial_sectors(config: Config, problem: Problem) -> float:
    """Sectors of C that a warp's store writes in part: both ends of what it has of each row, unless rows are whole."""
    elements = problem.batch * problem.m * problem.n
    whole = gcd(problem.n * problem.itemsize, SECTOR_BYTES) / SECTOR_BYTES
    return 2 * (1 - whole) * elements / (config["LANES_N"] * config["RUN_N"])


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
    each = COPY_CLOCKS + HALF_COPY_CLOCKS * (problem.itemsize == HALF_BYTES)
    copies = each * _copies(config, problem) * WARP / threads(config)
    products = FMA_CLOCKS * own * problem.k * words
    return K_CLOCKS * config["BK"] + products + copies


def _copies(config: Config, problem: Problem) -> float:
    """Copies that a block's warps issue: of 16 bytes, or of an element of an operand whose rows are not such."""
    wide, which = VECTOR_BYTES // problem.itemsize, ragged(problem)
    rows = config["BM"] / (1 if which & A else wide)
    columns = config["BN"] / (1 if which & B else wide)
    return (rows + columns) * config["BK"] / WARP
