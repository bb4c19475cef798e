"""The launch of tensor_core: threads, shared memory, registers, split k, and the steps before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.common.division import tile_order
from kernels.fp32_emulation import SplitOperands, split_operands
from kernels.launch import COUNTERS, Plan
from kernels.packing import HALF_BYTES, A, B, pack_k_major, packed_k_major
from kernels.problem import Problem, larger, smaller
from kernels.rules import LINE_BYTES, VECTOR_BYTES, WARP, blocks, registers_granted
from kernels.space import Config
from kernels.split_k import PARTIALS_BYTES, counters, fan, k_tiles, received_bytes

ACCUMULATOR_BYTES: Final = 4
# Bytes of a cp.async (PTX ISA, "cp.async"): of fewer than 16 through the L1 cache.
CP_SIZES: Final = (16, 8, 4)
# Bytes of k of an instruction.
STEP_BYTES: Final = 32
# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, counters; and where a thread copies
# more than a few pieces in a phase, these take more, of a plane at most so many. So do two operands that lie
# along C, by bytes of an element, and teams.
ADDRESSES: Final = 40
FEW_COPIES: Final = 4
A_COPY: Final = 5
MOST_FOR_COPIES: Final = 12
TURNED: Final = {2: 4, 4: 12}
SLICES: Final = 14
# Products of high halves before they are added up, of as many instructions as follow each other; more where these go
# down a part that is higher than wide.
PRODUCTS: Final = 16
# Rows of an instruction's accumulators.
MMA_M: Final = 16
TALL: Final = 4


def emulated(problem: Problem) -> bool:
    """Whether operands are float32, split into float16 terms."""
    return problem.precision == "emulated"


def planes(problem: Problem) -> int:
    """Matrices of an operand: two of emulated float32, its high and its low terms."""
    return 2 if emulated(problem) else 1


def element_bytes(problem: Problem) -> int:
    """Bytes of an element in shared memory, as the tensor cores multiply it."""
    return 2 if emulated(problem) else problem.itemsize


def slice_threads(config: Mapping[str, int]) -> int:
    """Threads of a slice of k: a warp for each WM x WN of the tile."""
    return config["BM"] // config["WM"] * (config["BN"] // config["WN"]) * WARP


def threads(config: Mapping[str, int]) -> int:
    """Threads of a block: those of all its slices of k."""
    return config["SLICE_K"] * slice_threads(config)


register_limit: Final = registers_granted(threads)


def realigned(config: Mapping[str, int], problem: Problem) -> int:
    """The operands whose lines lie in shared memory as in global memory, as bits."""
    return 0 if emulated(problem) else config["REALIGN"] & ~config["PACK_K"]


def cp_sizes(packed: int, realign: int, problem: Problem) -> tuple[int, int]:
    """Bytes of a cp.async of A and of B: the most that divide rows which are neither packed nor realigned, up to 16."""
    left = 0 if emulated(problem) else ~(packed | realign)
    row_a, row_b = problem.a_shape[1] * problem.itemsize, problem.b_shape[1] * problem.itemsize
    return _cp_size(row_a if left & A else 0), _cp_size(row_b if left & B else 0)


def _cp_size(row: int) -> int:
    """Bytes of a cp.async of rows of so many bytes; 0: they begin at multiples of 16, whatever is stored."""
    return next((each for each in CP_SIZES if row % each == 0), CP_SIZES[-1])


def operand_bytes(config: Mapping[str, int], problem: Problem) -> int:
    """Bytes of both operands' k tiles."""
    return planes(problem) * (config["BM"] + config["BN"]) * config["BK"] * element_bytes(problem)


def mn_major(config: Mapping[str, int], problem: Problem) -> int:
    """The operands whose tiles have lines along C's side in shared memory, as bits."""
    packed = A | B if emulated(problem) else config["PACK_K"]
    return (A * problem.trans_a | B * (not problem.trans_b)) & ~packed


def whole_line(nbytes: int) -> int:
    """Bytes of a swizzled line: of three times a power of two up to whole 128, as in swizzled_smem.h."""
    return nbytes if nbytes % 3 else -(-nbytes // LINE_BYTES) * LINE_BYTES


def _padding(config: Mapping[str, int], problem: Problem) -> int:
    """Bytes that follow the swizzled lines of MN-major operands in a k tile."""
    swizzled = mn_major(config, problem) & ~config["REALIGN"]
    lines = [config[side] * problem.itemsize for side, operand in (("BM", A), ("BN", B)) if swizzled & operand]
    return config["BK"] * sum(whole_line(line) - line for line in lines)


def stage_bytes(config: Mapping[str, int], problem: Problem) -> int:
    """Bytes of a stage: both operands' k tiles, a realigned one's lines each with a piece of 16 bytes more, or two."""
    which, bk = realigned(config, problem), config["BK"]
    across = 2 * VECTOR_BYTES if problem.itemsize > HALF_BYTES else VECTOR_BYTES  # of a line of one k
    of_a = (bk * across if problem.trans_a else config["BM"] * VECTOR_BYTES) if which & A else 0
    of_b = (config["BN"] * VECTOR_BYTES if problem.trans_b else bk * across) if which & B else 0
    return operand_bytes(config, problem) + _padding(config, problem) + of_a + of_b


def shared_bytes(config: Mapping[str, int], problem: Problem) -> int:
    """Bytes of all stages, or of the epilogue tiles, 16 rows of every warp, if these are more; and what others send."""
    rows, line = config["WM"] // MMA_M, ACCUMULATOR_BYTES * config["BN"]
    staged = config["SLICE_K"] * config["BM"] // config["WM"] * MMA_M
    received = received_bytes(config["CLUSTER_K"], rows, staged * line)
    return max(config["STAGES"] * stage_bytes(config, problem), staged * whole_line(line)) + received


def k_tiles_per_block(config: Config, problem: Problem) -> int:
    """K tiles of a block, of all splits and of their clusters; the last ones may have fewer."""
    return -(-k_tiles(config, problem) // (config["SPLIT_K"] * config["CLUSTER_K"]))


def k_steps(config: Mapping[str, int], problem: Problem) -> int:
    """Mma steps of a slice in a k tile."""
    return config["BK"] * element_bytes(problem) // STEP_BYTES // config["SLICE_K"]


def registers(config: Mapping[str, int], problem: Problem) -> int:
    """The least registers of a thread that spills nothing."""
    wm, wn = config["WM"], config["WN"]
    operands = planes(problem) * (1 + config["AHEAD"]) * (wm + wn) // 4
    crossed = PRODUCTS + TALL * (wm > wn) if emulated(problem) else 0
    pieces = operand_bytes(config, problem) // VECTOR_BYTES // threads(config)
    more = min(A_COPY * max(0, pieces - FEW_COPIES), planes(problem) * MOST_FOR_COPIES)
    along_c = problem.trans_a and not problem.trans_b and not emulated(problem)
    more += TURNED[element_bytes(problem)] * along_c + SLICES * (config["SLICE_K"] > 1)
    return planes(problem) * wm * wn // WARP + operands + crossed + ADDRESSES + more


def partials_bytes(config: Config, problem: Problem, splits: int) -> int:
    """Workspace for the partial sums of the splits."""
    return blocks(config, problem) * splits * config["BM"] * config["BN"] * ACCUMULATOR_BYTES


def first_partials_tile(config: Config, problem: Problem, splits: int) -> int:
    """The number that partial sums give the first tile, so that they come after split operands in the workspace."""
    if splits == 1 or not emulated(problem):
        return 0
    return -(
        -(split_operands(problem).end * LINE_BYTES - 4 * COUNTERS)
        // (splits * config["BM"] * config["BN"] * ACCUMULATOR_BYTES)
    )


def split_fits(config: Config, problem: Problem) -> bool:
    """Whether the counters suffice and the partial sums are at most 64 MiB."""
    splits = config["SPLIT_K"]
    if splits == 1:
        return True
    before = first_partials_tile(config, problem, splits) * (-(-splits // fan(splits)) + 1)
    counted = before + counters(config, problem) * config["CLUSTER_K"]
    return counted <= COUNTERS and partials_bytes(config, problem, splits) <= PARTIALS_BYTES


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a config, correct also on problems for which it is not legal."""
    parts, count = config["CLUSTER_K"], k_tiles(config, problem)
    each = k_tiles_per_block(config, problem) if split_fits(config, problem) else -(-count // parts)
    splits = -(-count // (each * parts))
    down, across = -(-problem.m // config["BM"]), -(-problem.n // config["BN"])
    order = tile_order(down, across, splits, config["GROUP_M"])
    own = (smaller(config["GROUP_M"], down), splits, fan(splits), each * config["BK"], *order)
    sums = partials_bytes(config, problem, splits) if splits > 1 else 0
    if emulated(problem):
        return _of_fp16_terms(config, problem, split_operands(problem), sums, own)
    found = packed_k_major(problem, config["PACK_K"], (4 * COUNTERS + sums) // LINE_BYTES)
    return Plan(
        grid=blocks(config, problem) * splits * parts,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=found.end * LINE_BYTES if sums or config["PACK_K"] else 0,
        scalars=(*found.scalars, *own),
        before=(pack_k_major(problem, config["PACK_K"]),) if config["PACK_K"] else (),
        cluster=parts,
    )


def _of_fp16_terms(config: Config, problem: Problem, split: SplitOperands, sums: int, own: tuple[int, ...]) -> Plan:
    splits = own[1]
    first = first_partials_tile(config, problem, splits)
    begin = 4 * COUNTERS + first * splits * config["BM"] * config["BN"] * ACCUMULATOR_BYTES
    return Plan(
        grid=blocks(config, problem) * splits,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=larger(split.end * LINE_BYTES, begin + sums),
        scalars=(*split.scalars, first, *own),
        before=split.before,
        verdict_at=split.verdict_at,
    )
