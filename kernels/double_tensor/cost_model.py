"""What double_tensor is estimated to take: clocks of the busiest SM."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.double_tensor.plan import registers, shared_bytes, threads
from kernels.packing import ragged
from kernels.problem import Problem
from kernels.rules import WARP, blocks
from kernels.space import Config
from kernels.split_k import fan, k_tiles, k_tiles_per_split
from kernels.stream_k import stream_k_schedule

# What an SM does in a clock: float64 FMAs on tensor cores, and bytes that it gets from the L2 cache, of which some are
# in the way of products. What more products take by instructions 16 deep, and k tiles of an operand whose rows are no
# multiples of 16 bytes. Warps that never all wait, and how much more it takes with fewer. In clocks: an element on its
# way to C, what a block takes besides, if no other runs beside it, and splits of k for each other. All but FMAS are
# fitted to 556 times of 27 shapes on an H200: what is estimated to take least takes 1.04 of the least time.
FMAS: Final = 128
CACHE_BYTES: Final = 63
IN_THE_WAY: Final = 0.54
DEEPEST: Final = 16
DEEPEST_COST: Final = 0.1
RAGGED_COST: Final = 0.08
BUSY_WARPS: Final = 4.04
IDLE_POWER: Final = 8.6
STORE_CLOCKS: Final = 0.21
BLOCK_CLOCKS: Final = 1400
JOIN_CLOCKS: Final = 4400


def clocks(config: Config, problem: Problem, device: Device) -> float:
    """Clocks of the busiest SM: its products, or their loads from the cache if these take longer, and stores.

    Few warps leave it idle during waits.
    """
    if config["STREAM_K_SMS"]:
        return _streamed(config, problem)
    size, splits = config["BM"] * config["BN"], config["SPLIT_K"]
    own = -(-blocks(config, problem) * splits // max(device.limits.sms, 1))
    resident = _resident(config, problem, device, own)
    joining = JOIN_CLOCKS + 2 * fan(splits) * size * problem.itemsize / CACHE_BYTES if splits > 1 else 0
    depth = k_tiles_per_split(config, problem) * config["BK"]
    step = _step(config, problem, resident)
    return own * (depth * step + size * STORE_CLOCKS + BLOCK_CLOCKS / resident) + joining


def _step(config: Config, problem: Problem, resident: int) -> float:
    """Clocks of an SM for one k of a tile, while it runs so many blocks."""
    idle: float = max(1.0, BUSY_WARPS * WARP / (threads(config) * resident)) ** IDLE_POWER
    brought = (config["BM"] + config["BN"]) * problem.itemsize / CACHE_BYTES
    products = config["BM"] * config["BN"] / FMAS * (1 + DEEPEST_COST * (config["MMA_K"] == DEEPEST))
    narrow = 1 + RAGGED_COST * ragged(problem).bit_count()
    return (max(products, brought) + IN_THE_WAY * brought) * narrow * idle


def _streamed(config: Config, problem: Problem) -> float:
    """The same with stream-K: an SM's blocks have equal shares, and add up partial sums."""
    found, whole, size = stream_k_schedule(config, problem), k_tiles(config, problem), config["BM"] * config["BN"]
    resident = min(config["MIN_BLOCKS"], -(-found.blocks // config["STREAM_K_SMS"]))
    deep = (found.each + (found.more > 0) + found.rounds * whole) * config["BK"]
    pieces = found.rounds + 1 + found.each / whole
    shared = JOIN_CLOCKS + 3 * size * problem.itemsize * resident / CACHE_BYTES
    each = deep * _step(config, problem, resident) + pieces * (size * STORE_CLOCKS + BLOCK_CLOCKS)
    return resident * each + shared


def _resident(config: Config, problem: Problem, device: Device, most: int) -> int:
    """Blocks that an SM runs at once, of `most`."""
    limits = device.limits
    room = limits.shared_bytes_per_sm // (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    granted = min(registers(config), limits.registers_per_thread) * threads(config)
    return max(1, min(most, room, max(config["MIN_BLOCKS"], limits.registers_per_sm // granted)))
