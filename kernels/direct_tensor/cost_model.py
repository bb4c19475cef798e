"""direct_tensor's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.direct_tensor.plan import threads, tiles
from kernels.direct_tensor.space import BAND, OWN, STRIP
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 439 times of 45 shapes on an H200: seconds of a launch.
LAUNCH: Final = 1.2e-6
# Clocks that a warp waits: before its first load, and for each load of a thread and each of its stores.
FIRST_CLOCKS: Final = 350
WAIT_LOAD: Final = 67
WAIT_STORE: Final = 3
# Clocks of an SM for each load, store and instruction of mma of a warp; more for a store of one element.
LOAD_CLOCKS: Final = 0.57
STORE_CLOCKS: Final = 12
SINGLE_STORE: Final = 14
MMA_CLOCKS: Final = 2.1
# Registers beside operands and half of the sums' columns.
ADDRESSES: Final = 40
# As in fragments.h: tiles of 8 lines of A that lie among each other, and what a thread reads of a line along k, of the
# least k and of longer ones.
BESIDE: Final = 4
RUN_K: Final = (4, 8)


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    limits, warps = device.limits, config["WARPS"]
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    loads = _loads(bm, bk, not problem.trans_a, BESIDE, problem.a_shape[1])
    loads += _loads(bn, bk, problem.trans_b, config["TN"] // OWN, problem.b_shape[1])
    stores, single = _stores(config, problem)
    grid = -(-tiles(config, problem) // warps)
    words = (bm + bn) // BAND * bk // BAND
    granted = min(ADDRESSES + words + bn // 2, limits.registers_per_thread)
    busy, waves = turns(limits, grid, threads(config), 0, granted)
    products = bm / STRIP * bn / BAND * bk / STRIP
    issued = LOAD_CLOCKS * loads + (STORE_CLOCKS + SINGLE_STORE * single) * stores + MMA_CLOCKS * products
    waits = FIRST_CLOCKS + WAIT_LOAD * loads + WAIT_STORE * stores
    return LAUNCH + (busy * warps * issued + waves * waits) / CLOCK + problem.bytes / limits.bandwidth


def _loads(lines: int, depth: int, k_major: bool, most_beside: int, length: int) -> float:
    """Loads of a thread for its words of an operand: of several at once, or of each element where rows are ragged."""
    count = lines // BAND
    words = RUN_K[depth > STRIP] // OWN if k_major else min(count, most_beside)
    all_words = count * (depth // BAND)
    return all_words / words if length % (OWN * words) == 0 else OWN * all_words


def _stores(config: Config, problem: Problem) -> tuple[float, bool]:
    """Stores of a thread, and whether they are of one element."""
    own = OWN * min(config["BN"] // BAND, config["TN"] // OWN)
    single = problem.n % own > 0
    return config["BM"] * config["BN"] / (WARP * (1 if single else own)), single
