"""direct_tensor's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.direct_tensor.plan import passes, threads, tiles
from kernels.direct_tensor.space import BAND, OWN, REALIGN_C, STRIP, most_own, past, words, words_of_line
from kernels.packing import A, B, is_c_ragged
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 3,282 times of 183 shapes on an H200: seconds of a launch.
LAUNCH: Final = 1.86e-6
# Clocks that a warp waits for each load of a thread and each of its stores.
WAIT_LOAD: Final = 18.9
WAIT_STORE: Final = 36.3
# Clocks of an SM for each load, store and instruction of mma of a warp; more for a store of one element, for a word of
# an operand or of C that is realigned, and for the ends of a row of C.
LOAD_CLOCKS: Final = 2.95
STORE_CLOCKS: Final = 4.65
SINGLE_STORE: Final = 8.39
MMA_CLOCKS: Final = 2.3
MOVED_CLOCKS: Final = 4.99
ENDS_CLOCKS: Final = 12.4
# Clocks that a warp waits in each pass but the first, for the others' slices, and for each pair of sums that it adds.
PASS_CLOCKS: Final = 859
JOIN_CLOCKS: Final = 542
SUM_CLOCKS: Final = 16.5
# Clocks of an SM until a block is there.
BLOCK_CLOCKS: Final = 40.2
# Of bandwidth, that memory has; and how often rows of C that start anywhere are stored again, if not in aligned words.
OF_BANDWIDTH: Final = 2.56
STORED_AGAIN: Final = 2
# Registers beside operands and half of the sums' columns.
ADDRESSES: Final = 40
# As in fragments.h: tiles of 8 lines of A that lie among each other, and elements that a thread reads along k.
BESIDE: Final = 4
RUN_K: Final = (4, 8)
WORD: Final = 4  # bytes


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    limits, warps = device.limits, config["WARPS"]
    bm, bn = config["BM"], config["BN"]
    in_a, in_b = _operands(config, problem)
    loads, moved = in_a.loads + in_b.loads, in_a.moved + in_b.moved
    stores, single, ends = _stores(config, problem)
    of_c = bm * bn * problem.itemsize // (WORD * WARP) if ends else 0
    slices = config["SLICE_K"]
    grid = -(-tiles(config, problem) // (warps // slices))
    granted = min(ADDRESSES + words(config, problem) + past(config, problem) + bn // 2, limits.registers_per_thread)
    busy, waves = turns(limits, grid, threads(config), 0, granted)
    products = bm / STRIP * bn / BAND * words_of_line(config, problem) / 2
    times = passes(config, problem)
    stored = (STORE_CLOCKS + SINGLE_STORE * single) * stores + ENDS_CLOCKS * ends
    issued = times * (LOAD_CLOCKS * loads + MMA_CLOCKS * products + MOVED_CLOCKS * moved)
    issued += (stored + MOVED_CLOCKS * of_c) / slices
    # Of a tile's bands of 8 rows a warp sums and stores its share.
    share = -(-bm // BAND // slices) * BAND / bm
    waits = times * WAIT_LOAD * loads + (times - 1) * PASS_CLOCKS + WAIT_STORE * (stores + ends) * share
    waits += (slices > 1) * (JOIN_CLOCKS + SUM_CLOCKS * slices * share * bm * bn / (WARP * OWN))
    clocks = busy * (warps * issued + BLOCK_CLOCKS) + waves * waits
    again = is_c_ragged(problem) and not config["REALIGN"] & REALIGN_C
    stored_bytes = again * problem.batch * problem.m * problem.n * problem.itemsize
    return LAUNCH + clocks / CLOCK + (problem.bytes + STORED_AGAIN * stored_bytes) / (OF_BANDWIDTH * limits.bandwidth)


@dataclass(frozen=True, slots=True)
class _Reads:
    """A thread's loads for its words of an operand, and the words that are moved to where rows begin."""

    loads: float
    moved: int


def _operands(config: Config, problem: Problem) -> tuple[_Reads, _Reads]:
    """Both operands."""
    per_word = WORD // problem.itemsize
    along_k = RUN_K[problem.itemsize < WORD and config["BK"] % 32 == 0] // per_word
    found = []
    for operand, lines, k_major, most, length in (
        (A, config["BM"], not problem.trans_a, BESIDE, problem.a_shape[1]),
        (B, config["BN"], problem.trans_b, config["TN"] // OWN, problem.b_shape[1]),
    ):
        count = lines // BAND
        width = along_k if k_major else min(count, most)
        everything = count * words_of_line(config, problem)
        if config["REALIGN"] & operand:
            rows = 0 if k_major else words_of_line(config, problem)
            found.append(_Reads(everything / width + rows, everything))
        else:
            by_element = length % (per_word * width) > 0
            found.append(_Reads(everything * per_word if by_element else everything / width, 0))
    return found[0], found[1]


def _stores(config: Config, problem: Problem) -> tuple[float, bool, float]:
    """Stores of a thread, whether they are of one element, and rows of C of which it stores the ends."""
    own = min(config["TN"], most_own(config, problem))
    rows = config["BM"] / BAND
    whole = config["BM"] * config["BN"] / (WARP * own)
    if config["REALIGN"] & REALIGN_C:
        return whole, False, rows
    single = problem.n % own > 0
    return whole * own if single else whole, single, 0.0
