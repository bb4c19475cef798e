"""The launch of double_tensor: its threads and shared memory, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.launch import COUNTERS, Plan
from kernels.problem import Problem
from kernels.rules import blocks, registers_granted
from kernels.space import Config
from kernels.split_k import fan, phases, share, split_fits, sums_bytes

WARP: Final = 32
# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, counters.
ADDRESSES: Final = 76
# Copies of 16 bytes that a thread sends in a phase before their addresses take more, half as many where a warp's part
# is wider than it is high, and how many registers more.
FEW_COPIES: Final = 16
A_COPY: Final = 8


def threads(config: Config) -> int:
    """Threads of a block: a warp for each WM x WN of its tile."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP


# Registers that the compiler may give a thread so that an SM holds MIN_BLOCKS blocks; 0 where the device has none.
granted: Final = registers_granted(threads)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both shared tiles."""
    return config["STAGES"] * (config["BM"] + config["BN"]) * config["BK"] * problem.itemsize


def registers(config: Config) -> int:
    """Registers that a thread needs at least if nothing is to be spilled: two for each double."""
    wm, wn = config["WM"], config["WN"]
    operands = (1 + config["AHEAD"]) * config["MMA_K"] * (wm + wn)
    copies = (config["BM"] + config["BN"]) * config["BK"] // 2 // threads(config)
    more = max(0, copies - (FEW_COPIES if wm >= wn else FEW_COPIES // 2))
    return 2 * (wm * wn + operands) // WARP + ADDRESSES + A_COPY * more


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    split = config["SPLIT_K"] > 1 and split_fits(config, problem)
    phased = share(config, problem) if split else phases(config, problem)
    slices = -(-phases(config, problem) // phased)
    down = -(-problem.m // config["BM"])
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=4 * COUNTERS + sums_bytes(config, problem, slices) if slices > 1 else 0,
        numbers=(min(config["GROUP_M"], down), slices, fan(slices), phased * config["BK"]),
    )
