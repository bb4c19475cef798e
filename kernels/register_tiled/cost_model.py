"""register_tiled's cost model for float32 on CUDA: an estimate of a config's time, where other kernels rival it."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.packing import packed_bytes
from kernels.problem import Problem
from kernels.register_tiled.plan import plan, registers, shared_bytes, threads
from kernels.rules import VECTOR_BYTES, WARP, blocks
from kernels.space import Config

# float32 FMAs of an SM in a clock.
FMAS: Final = 128
# Fitted, as benchmarks/kernels/fit.py does, to 297 times of 51 shapes on an H200, but for LAUNCH: seconds of a launch,
# of splits of k that meet, of each that one block adds up, and of a launch that packs; and the share of memory's
# bandwidth that traffic seems to have.
LAUNCH: Final = 1.4e-6
MEETING: Final = 2.1e-6
JOINED: Final = 1.4e-7
PACKING: Final = 3.3e-6
OF_BANDWIDTH: Final = 1.4
# Clocks of a k tile that a block waits: at its barrier, and for each FMA of a thread.
WAIT_CLOCKS: Final = 194
FMA_CLOCKS: Final = 1.5
# Clocks of an SM for each element of a step that a warp loads, and each of its copies; and the exponent p of the p-norm
# of these and of products, which overlap but for the end.
LOAD_CLOCKS: Final = 0.5
COPY_CLOCKS: Final = 0.17
SHARP: Final = 4
# Clocks of a tile before its first product and after its last one; of a warp's stores of C, for each of the lines that
# it has open at once, and what each further slice does.
TILE_CLOCKS: Final = 85
STORE_CLOCKS: Final = 20
LINE_CLOCKS: Final = 0.25
SLICE_CLOCKS: Final = 3.3
# Columns that a thread has side by side.
RUN: Final = 4


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch with the packing before it."""
    limits, planned = device.limits, plan(config, problem)
    splits, fan, k_tiles, *_ = planned.scalars
    found = turns(limits, planned.grid, threads(config), shared_bytes(config, problem), registers(config, problem))
    clocks = k_tiles * _k_tile_clocks(config, problem, found) + _tile_clocks(config, problem, found)
    moved = problem.bytes + 2 * splits * (splits > 1) * blocks(config, problem) * config["BM"] * config["BN"] * 4
    packing = (PACKING + 2 * packed_bytes(problem) / limits.bandwidth) * config["PACK_MN"]
    meeting = MEETING + JOINED * (fan + -(-splits // fan)) if splits > 1 else 0
    return LAUNCH + clocks / CLOCK + moved / (OF_BANDWIDTH * limits.bandwidth) + packing + meeting


def copies(config: Config, problem: Problem) -> float:
    """Copies of both operands that a thread makes for a k tile: of 16 bytes where rows are such and lie along C."""
    wide, packed = VECTOR_BYTES // problem.itemsize, config["PACK_MN"]
    of_a = wide if packed or (problem.trans_a and problem.m % wide == 0) else 1
    of_b = wide if packed or (not problem.trans_b and problem.n % wide == 0) else 1
    return (config["BM"] / of_a + config["BN"] / of_b) * config["BK"] / threads(config)


def _k_tile_clocks(config: Config, problem: Problem, found: tuple[int, int]) -> float:
    """Clocks of the busiest SM for one k tile of each of its blocks: what they issue, and what one waits."""
    busy, waves = found
    own, steps, warps = copies(config, problem), config["BK"] / config["SLICE_K"], threads(config) / WARP
    products = busy * config["BM"] * config["BN"] * config["BK"] / FMAS
    issued = busy * warps * (LOAD_CLOCKS * steps * (config["TM"] + config["TN"]) + COPY_CLOCKS * own)
    waits = waves * (WAIT_CLOCKS + FMA_CLOCKS * steps * config["TM"] * config["TN"])
    both: float = ((issued + waits) ** SHARP + products**SHARP) ** (1 / SHARP)
    return both


def _tile_clocks(config: Config, problem: Problem, found: tuple[int, int]) -> float:
    """Clocks of the busiest SM before and after the loop over k."""
    busy, waves = found
    wide = VECTOR_BYTES // problem.itemsize
    lines = WARP * config["TN"] / config["WN"] * config["TN"] / RUN
    each = (STORE_CLOCKS + LINE_CLOCKS * lines) / (1 if problem.n % wide else wide)
    each += SLICE_CLOCKS * (config["SLICE_K"] - 1)
    return waves * TILE_CLOCKS + busy * each * config["BM"] * config["BN"] / WARP
