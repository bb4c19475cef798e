"""direct_tensor's cost model: an estimate of a config's time, which its default has the least of."""

from __future__ import annotations

from typing import Final, NamedTuple

from kernels.cost_model import CLOCK, turns
from kernels.device import Device
from kernels.direct_tensor.plan import BAND, REALIGN_C, grid, passes, slices, threads
from kernels.direct_tensor.space import OWN, STRIP, most_own, past, words, words_of_line
from kernels.packing import A, B, is_c_ragged
from kernels.problem import Problem
from kernels.rules import CLUSTERED_SMS, LINE_BYTES, WARP
from kernels.space import Config

# Fitted, as benchmarks/kernels/fit.py does, to 5,395 times of 500 shapes on an H200: seconds of a launch.
LAUNCH: Final = 1.53e-6
# Clocks that a warp waits for each load of a thread, of some words or one element, for each word that is realigned, for
# each of its stores, and for eight rows of C that go through shared memory.
WAIT_LOAD: Final = 29.3
WAIT_HALF: Final = 52.9
WAIT_WORD: Final = 19.6
WAIT_MOVED: Final = 12.6
WAIT_STAGED: Final = 194
WAIT_STORE: Final = 30.4
# Clocks of an SM for each element that a warp loads by itself, each word that a thread has then, each line of memory
# that a tile's loads begin, each store and instruction of mma of a warp, and each store from shared memory; more for a
# store of one element, and for a word of an operand that is realigned.
ELEMENT_CLOCKS: Final = 1.13
WORD_CLOCKS: Final = 0.213
LINE_CLOCKS: Final = 0.51
STORE_CLOCKS: Final = 3.51
SINGLE_STORE: Final = 11.6
MMA_CLOCKS: Final = 2.89
MOVED_CLOCKS: Final = 3.39
ROW_STORE_CLOCKS: Final = 2.58
# Clocks that a warp waits in each pass but the first, for the others' slices, and for each pair of sums that it adds.
PASS_CLOCKS: Final = 616
JOIN_CLOCKS: Final = 424
SUM_CLOCKS: Final = 14.5
# The same for a cluster's blocks, by 148 times since they send sums by st.async.
CLUSTER_CLOCKS: Final = 50
# Clocks of an SM until a block is there, and each of its warps; and for each block of the first on all SMs.
BLOCK_CLOCKS: Final = 9.65
WARP_CLOCKS: Final = 20.1
BEGUN_CLOCKS: Final = 3.82
# Of bandwidth, that memory has; and how often rows of C that start anywhere are stored again, if not by rows.
OF_BANDWIDTH: Final = 2.47
STORED_AGAIN: Final = 1.93
# Registers beside operands and sums: of any config, more with slices of k, and more where operands are realigned. Means
# of 686 configs' as compiled for sm_90, of which one in ten has 20 more.
ADDRESSES: Final = 20
SLICED_REGISTERS: Final = 30
MOVED_REGISTERS: Final = 20
# As in fragments.h: tiles of 8 lines of A that lie among each other, and elements that a thread reads along k.
BESIDE: Final = 4
RUN_K: Final = (4, 8)
WORD: Final = 4  # bytes


def seconds(config: Config, problem: Problem, device: Device) -> float:
    """Estimated seconds of a launch."""
    limits, warps = device.limits, config["WARPS"]
    reads, writes = _operands(config, problem), _writes(config, problem)
    share = CLUSTERED_SMS.get(config["CLUSTER_K"], 1)
    blocks = grid(config, problem)
    busy, waves = turns(limits, blocks, threads(config), 0, _registers(config, problem, device), share)
    issued = warps * (WARP_CLOCKS + _issued(config, problem, reads, writes)) + BLOCK_CLOCKS
    waits = _waits(config, problem, reads, writes)
    clocks = busy * issued + waves * waits + BEGUN_CLOCKS * min(blocks, limits.sms)
    again = is_c_ragged(problem) and not config["REALIGN"] & REALIGN_C
    stored_bytes = again * problem.batch * problem.m * problem.n * problem.itemsize
    return LAUNCH + clocks / CLOCK + (problem.bytes + STORED_AGAIN * stored_bytes) / (OF_BANDWIDTH * limits.bandwidth)


def _registers(config: Config, problem: Problem, device: Device) -> int:
    """Registers of a thread, about: its sums are a strip's, or a whole tile's where others' are added."""
    is_sliced, is_moved = config["SLICE_K"] > 1, config["REALIGN"] & (A | B) > 0
    sums = (config["BM"] if is_sliced else STRIP) * config["BN"] // WARP
    others = ADDRESSES + SLICED_REGISTERS * is_sliced + MOVED_REGISTERS * is_moved
    return min(others + sums + words(config, problem) + past(config, problem), device.limits.registers_per_thread)


class _Reads(NamedTuple):
    """A thread's loads for its words of an operand, the words that are moved to where rows begin, a tile's lines."""

    loads: float
    elements: int
    moved: int
    lines: float


class _Writes(NamedTuple):
    """A thread's stores, whether each is of one element that no other lane's is beside, or by rows of C."""

    stores: float
    single: bool
    by_rows: bool


def _issued(config: Config, problem: Problem, reads: tuple[_Reads, _Reads], writes: _Writes) -> float:
    """Clocks of an SM in which a warp's loads, products and stores are issued."""
    products = config["BM"] / STRIP * config["BN"] / BAND * words_of_line(config, problem) / 2
    loads = sum(ELEMENT_CLOCKS * each.elements + LINE_CLOCKS * each.lines + MOVED_CLOCKS * each.moved for each in reads)
    times = passes(config, problem)
    each = ROW_STORE_CLOCKS if writes.by_rows else STORE_CLOCKS + SINGLE_STORE * writes.single
    stored = each * writes.stores
    return times * (loads + WORD_CLOCKS * words(config, problem) + MMA_CLOCKS * products) + stored / slices(config)


def _waits(config: Config, problem: Problem, reads: tuple[_Reads, _Reads], writes: _Writes) -> float:
    """Clocks that a warp waits: for what it loads, and for instructions, most of which it runs but once."""
    bm, of_block, times = config["BM"], config["SLICE_K"], passes(config, problem)
    element = WAIT_HALF if problem.itemsize < WORD else WAIT_WORD
    loads = sum(WAIT_LOAD * each.loads + element * each.elements + WAIT_MOVED * each.moved for each in reads)
    # Of a tile's bands of 8 rows a warp sums and stores its share.
    share = -(-bm // BAND // of_block) * BAND / bm
    stores = WAIT_STAGED * bm / BAND if writes.by_rows else WAIT_STORE * writes.stores * (not writes.single)
    joined = JOIN_CLOCKS + SUM_CLOCKS * of_block * share * bm * config["BN"] / (WARP * OWN) if of_block > 1 else 0
    return times * loads + (times - 1) * PASS_CLOCKS + share * stores + joined + _cluster_clocks(config)


def _cluster_clocks(config: Config) -> float:
    """Clocks of a cluster's barriers, and in which a warp adds what all of its blocks have of a band."""
    blocks = config["CLUSTER_K"]
    return CLUSTER_CLOCKS + SUM_CLOCKS * blocks * BAND * config["BN"] / (WARP * OWN) if blocks > 1 else 0


def _operands(config: Config, problem: Problem) -> tuple[_Reads, _Reads]:
    """Both operands."""
    per_word = WORD // problem.itemsize
    along_k = RUN_K[problem.itemsize < WORD and config["BK"] % 32 == 0] // per_word
    found = []
    for operand, lines, side, k_major, most, length in (
        (A, config["BM"], problem.m, not problem.trans_a, BESIDE, problem.a_shape[1]),
        (B, config["BN"], problem.n, problem.trans_b, config["TN"] // OWN, problem.b_shape[1]),
    ):
        count, there = lines // BAND, min(lines, side)
        width = along_k if k_major else min(count, most)
        everything = count * words_of_line(config, problem)
        across, down = (config["BK"], there) if k_major else (there, config["BK"])
        begun = across * problem.itemsize / LINE_BYTES + (length * problem.itemsize % LINE_BYTES > 0) / 2
        of_lines = down * max(1.0, begun)
        if config["REALIGN"] & operand:
            rows = 0 if k_major else words_of_line(config, problem)
            found.append(_Reads(everything / width + rows, 0, everything, of_lines))
        elif length % (per_word * width) > 0:
            found.append(_Reads(0, everything * per_word, 0, of_lines))
        else:
            found.append(_Reads(everything / width, 0, 0, of_lines))
    return found[0], found[1]


def _writes(config: Config, problem: Problem) -> _Writes:
    """Of C."""
    own = min(config["TN"], most_own(config, problem))
    area = config["BM"] * config["BN"] / WARP
    if config["REALIGN"] & REALIGN_C:
        return _Writes(area / (2 if problem.n % 2 == 0 else 1), single=False, by_rows=True)
    single = problem.n % own > 0
    return _Writes(area if single else area / own, single, by_rows=False)
