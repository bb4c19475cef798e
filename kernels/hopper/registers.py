"""What registers of a consumer's thread hold, as far as ptxas spills none."""

from __future__ import annotations

from typing import Final, TypeAlias

from kernels.hopper.plan import TOGETHER, WGMMA_M, accumulators, emulated, sharers, tile_operands
from kernels.problem import Problem
from kernels.space import Config

# Accumulators of a thread by consumers and blocks on an SM: with 64 rows of the LHS a consumer, with 128, and so on.
ByRows: TypeAlias = dict[tuple[int, int], tuple[int, ...]]

# Accumulators of a thread that leave registers for the rest: by consumers, which have 255, 232 (emulated: 240) and 160
# registers a thread, while ptxas gives one instruction at most the registers that the block started with, 128 with
# three consumers; and by blocks on an SM, which leave 168 and 96 registers.
MOST_ACCUMULATORS: Final = {1: 128, 2: 128, 3: 96}
# Those of two consumers, where TMA stores C.
MOST_OF_TWO: Final = 160
MOST_EMULATED_ACCUMULATORS: Final = {1: 192, 2: 192, 3: 96}
MOST_BESIDE: Final = {1: 192, 2: 96, 4: 32}
# And beside an LHS in registers, of which 64 rows take 16, those with which the ptxas of CUDA 12.9 and of 13.0 spill
# nothing: by TMA_STORE, as threads that store C themselves keep 64-bit addresses too.
MOST_BESIDE_LHS: Final[dict[int, ByRows]] = {
    0: {(1, 1): (128, 96, 96, 48), (2, 1): (128, 88), (3, 1): (64,), (1, 2): (56, 32, 24, 16), (1, 4): (16, 0)},
    1: {(1, 1): (128, 112, 96, 64), (2, 1): (128, 112), (3, 1): (96,), (1, 2): (96, 64, 48, 32), (1, 4): (32, 16)},
}
# Those of TF32 where threads store C and two blocks share an SM.
MOST_STORED: Final = 64
# Tiles with which threads that store C themselves, or realign operands, spill a few, though not with all larger ones:
# by whether elements are TF32's, the LHS is in registers and operands are realigned, SWAP_AB, rows of the LHS, columns
# of the RHS, consumers and blocks on an SM.
SPILLED: Final[dict[tuple[bool, bool, bool], tuple[tuple[int, ...], ...]]] = {
    (False, False, False): ((1, 192, 64, 1, 2),),
    (False, False, True): ((1, 64, 128, 1, 1), (1, 128, 64, 1, 1)),
    (True, False, False): ((1, 64, 56, 1, 4), (1, 64, 64, 1, 4), (1, 192, 160, 3, 1), (1, 256, 128, 2, 1)),
    (True, False, True): (
        *((0, 64, 112, 1, 1), (0, 64, 120, 1, 1), (0, 192, 40, 1, 1)),
        *((1, 64, 112, 1, 1), (1, 64, 120, 1, 1), (1, 64, 128, 1, 1), (1, 128, 56, 1, 1), (1, 128, 64, 1, 1)),
        *((1, 192, 32, 1, 1), (1, 192, 40, 1, 1), (1, 256, 32, 1, 1)),
    ),
    (True, True, True): (
        *((0, 64, 80, 1, 1), (0, 64, 88, 1, 1), (0, 64, 96, 1, 1), (0, 128, 32, 1, 1), (0, 192, 8, 1, 1)),
        (1, 192, 8, 1, 1),
    ),
}


def lhs_registers(config: Config, problem: Problem) -> int:
    """Elements of the LHS that a consumer's thread has in registers: those of an MN-major LHS of 32 bits."""
    lhs, _ = tile_operands(config, problem)
    across = problem.precision == "tf32" and not lhs.k_major
    return lhs.tile // sharers(config) * config["BK"] // 128 if across else 0


def most_accumulators(config: Config, problem: Problem) -> int:
    """Accumulators of a thread that leave registers for the rest, among it an LHS in registers."""
    consumers, blocks = config["CONSUMERS"], config["MIN_BLOCKS"]
    most = MOST_EMULATED_ACCUMULATORS if emulated(problem) else MOST_ACCUMULATORS
    stored = MOST_OF_TWO if consumers == TOGETHER and config["TMA_STORE"] else 0
    lhs, _ = tile_operands(config, problem)
    rows = -(-lhs.tile // (WGMMA_M * sharers(config)))
    beside = MOST_BESIDE_LHS[config["TMA_STORE"]] if lhs_registers(config, problem) else {}
    return min(max(most[consumers], stored), MOST_BESIDE[blocks], *beside.get((consumers, blocks), ())[rows - 1 : rows])


def is_spilled(config: Config, problem: Problem) -> bool:
    """Whether ptxas spills a few registers of the tile, though not of all larger ones."""
    lhs, rhs = tile_operands(config, problem)
    if config["TMA_STORE"] and not config["REALIGN"]:
        return False
    # A tile of 128 x 128 where threads store C: in clusters ptxas spills 40 bytes.
    has_most = accumulators(config, problem) >= MOST_EMULATED_ACCUMULATORS[TOGETHER]
    if emulated(problem) and config["SWAP_AB"] and has_most:
        return True
    tf32 = problem.precision == "tf32"
    stored = tf32 and not config["TMA_STORE"] and config["MIN_BLOCKS"] == TOGETHER
    tile = (config["SWAP_AB"], lhs.tile, rhs.tile, config["CONSUMERS"], config["MIN_BLOCKS"])
    how = tf32, lhs_registers(config, problem) > 0, config["REALIGN"] > 0
    return (stored and accumulators(config, problem) > MOST_STORED) or tile in SPILLED.get(how, ())
