"""How tensor_core is launched: threads, shared memory, registers, k in slices, and what the steps before bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.fp32_emulation import Halves, halves
from kernels.launch import COUNTERS, Plan
from kernels.packing import LINE_BYTES, VECTOR_BYTES, pack_k_major, packed_k_major
from kernels.problem import Problem
from kernels.rules import blocks, registers_granted
from kernels.space import Config
from kernels.split_k import SUMS_BYTES, counters, fan, phases, share

WARP: Final = 32
SUM_BYTES: Final = 4
# An instruction multiplies so many bytes of k.
STEP_BYTES: Final = 32
# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, counters; and where a thread copies
# more than a few pieces in a phase, these take more, of a plane at most so many. So do two operands that lie
# along C, by bytes of an element, and teams.
ADDRESSES: Final = 40
FEW_PIECES: Final = 4
A_PIECE: Final = 5
MOST_FOR_PIECES: Final = 12
TURNED: Final = {2: 4, 4: 12}
TEAMS: Final = 14
# Products of high halves before they are added up, of as many instructions as follow each other; more where these go
# down a part that is higher than wide.
PRODUCTS: Final = 16
TALL: Final = 4


def is_split(problem: Problem) -> bool:
    """Whether each operand comes in halves of 16 bits."""
    return problem.precision == "emulated"


def planes(problem: Problem) -> int:
    """Matrices that an operand is."""
    return 2 if is_split(problem) else 1


def item_bytes(problem: Problem) -> int:
    """Bytes of an operand's element as it is multiplied."""
    return 2 if is_split(problem) else problem.itemsize


def team(config: Mapping[str, int]) -> int:
    """Threads that have the whole tile: a warp for each WM x WN."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP


def threads(config: Mapping[str, int]) -> int:
    """Threads of a block: those of all its teams."""
    return config["SLICE_K"] * team(config)


# Registers that the compiler may give a thread so that an SM holds MIN_BLOCKS blocks; 0 where the device has none.
granted: Final = registers_granted(threads)


def stage_bytes(config: Mapping[str, int], problem: Problem) -> int:
    """Bytes of both tiles of a phase."""
    return planes(problem) * (config["BM"] + config["BN"]) * config["BK"] * item_bytes(problem)


def shared_bytes(config: Mapping[str, int], problem: Problem) -> int:
    """Bytes of all stages, or of 16 rows of every warp's sums on their way to C where these are more."""
    sums = SUM_BYTES * config["SLICE_K"] * config["BM"] // config["WM"] * 16 * config["BN"]
    return max(config["STAGES"] * stage_bytes(config, problem), sums)


def steps(config: Mapping[str, int], problem: Problem) -> int:
    """Steps of a team in a phase, of an instruction's depth each."""
    return config["BK"] * item_bytes(problem) // STEP_BYTES // config["SLICE_K"]


def registers(config: Mapping[str, int], problem: Problem) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    wm, wn = config["WM"], config["WN"]
    operands = planes(problem) * (1 + config["AHEAD"]) * (wm + wn) // 4
    crossed = PRODUCTS + TALL * (wm > wn) if is_split(problem) else 0
    pieces = stage_bytes(config, problem) // VECTOR_BYTES // threads(config)
    more = min(A_PIECE * max(0, pieces - FEW_PIECES), planes(problem) * MOST_FOR_PIECES)
    along_c = problem.trans_a and not problem.trans_b and not is_split(problem)
    more += TURNED[item_bytes(problem)] * along_c + TEAMS * (config["SLICE_K"] > 1)
    return planes(problem) * wm * wn // WARP + operands + crossed + ADDRESSES + more


def sums_bytes(config: Config, problem: Problem, slices: int) -> int:
    """Scratch that the sums of so many slices take."""
    return blocks(config, problem) * slices * config["BM"] * config["BN"] * SUM_BYTES


def first_tile(config: Config, problem: Problem, slices: int) -> int:
    """The number of the first tile: sums of slices come after the halves of operands in scratch."""
    if slices == 1 or not is_split(problem):
        return 0
    return -(-(halves(problem).end * LINE_BYTES - 4 * COUNTERS) // (slices * config["BM"] * config["BN"] * SUM_BYTES))


def split_fits(config: Config, problem: Problem) -> bool:
    """Whether there are counters enough, and at most 64 MiB of sums."""
    slices = config["SPLIT_K"]
    if slices == 1:
        return True
    before = first_tile(config, problem, slices) * (-(-slices // fan(slices)) + 1)
    return before + counters(config, problem) <= COUNTERS and sums_bytes(config, problem, slices) <= SUMS_BYTES


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config; of one that is not, on a neighbour of its shape, a correct one."""
    phased = share(config, problem) if split_fits(config, problem) else phases(config, problem)
    slices = -(-phases(config, problem) // phased)
    own = (min(config["GROUP_M"], -(-problem.m // config["BM"])), slices, fan(slices), phased * config["BK"])
    sums = sums_bytes(config, problem, slices) if slices > 1 else 0
    if is_split(problem):
        return _of_halves(config, problem, halves(problem), sums, own)
    found = packed_k_major(problem, config["PACK_K"], (4 * COUNTERS + sums) // LINE_BYTES)
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=found.end * LINE_BYTES if sums or config["PACK_K"] else 0,
        numbers=(*found.numbers, *own),
        before=(pack_k_major(problem, config["PACK_K"]),) if config["PACK_K"] else (),
    )


def _of_halves(config: Config, problem: Problem, split: Halves, sums: int, own: tuple[int, ...]) -> Plan:
    slices = own[1]
    first = first_tile(config, problem, slices)
    begin = 4 * COUNTERS + first * slices * config["BM"] * config["BN"] * SUM_BYTES
    return Plan(
        grid=blocks(config, problem) * slices,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=max(split.end * LINE_BYTES, begin + sums),
        numbers=(*split.numbers, first, *own),
        before=split.before,
        verdict_at=split.verdict_at,
    )
