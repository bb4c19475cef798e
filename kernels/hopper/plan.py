"""How hopper is launched: its tile in shared memory, the tensors that it moves boxes of, k in slices, other steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels import packing
from kernels.fp32_emulation import halves
from kernels.launch import COUNTERS, Build, Plan, Step, TensorMap, dtype_macros
from kernels.problem import Problem
from kernels.sources import source
from kernels.space import Config
from kernels.split_k import phases, share

SPLIT_K_REDUCE: Final = "steps/split_k_reduce_f32.cu"
REDUCE_THREADS: Final = 256
MOST_REDUCERS: Final = 8
LINE_BYTES: Final = 128
VECTOR_BYTES: Final = 16
SUMS_BYTES: Final = 2**26
# As in epilogue.h: two strips of 64 rows of 128 bytes for each consumer; and a stage's two barriers.
STRIPS_BYTES: Final = 2 * 64 * LINE_BYTES
BARRIER_BYTES: Final = 16
GROUP_THREADS: Final = 128
WARP: Final = 32
# Rows of one instruction (PTX ISA, "wgmma.mma_async").
ROWS: Final = 64
EIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Side:
    """One operand as the tile's left or right side: of so many rows or columns, `size` in all.

    `along` says whether it is read along k, from its copy if it is `copied`.
    """

    operand: str
    tile: int
    size: int
    along: bool
    copied: bool


def emulated(problem: Problem) -> bool:
    """Whether operands are float32 that are split into halves."""
    return problem.precision == "emulated"


def planes(problem: Problem) -> int:
    """Matrices that a side has in a stage."""
    return 2 if emulated(problem) else 1


def element_bytes(problem: Problem) -> int:
    """Bytes of what the tensor cores multiply, as it is in shared memory."""
    return 2 if emulated(problem) else problem.itemsize


def sides(config: Config, problem: Problem) -> tuple[Side, Side]:
    """The left side, which a consumer has whole 64s of rows of, and the right one; with SWAP_AB B is left."""
    copied_a, copied_b = bool(config["PACK_K"] & packing.A), bool(config["PACK_K"] & packing.B)
    split = emulated(problem)
    a = Side("a", config["BM"], problem.m, split or copied_a or not problem.trans_a, copied_a)
    b = Side("b", config["BN"], problem.n, split or copied_b or problem.trans_b, copied_b)
    return (b, a) if config["SWAP_AB"] else (a, b)


def stage_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both sides' tiles for one phase."""
    return planes(problem) * (config["BM"] + config["BN"]) * LINE_BYTES


def besides_bytes(config: Config) -> int:
    """Bytes of shared memory that are not stages: what consumers write C's strips into."""
    return config["CONSUMERS"] * STRIPS_BYTES


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages with their barriers, and of the strips."""
    return config["STAGES"] * (stage_bytes(config, problem) + BARRIER_BYTES) + besides_bytes(config)


def threads(config: Config) -> int:
    """Threads of a block: the consumers' and a producer's, whole 128 where it hands on its registers, else a warp."""
    consumers = config["CONSUMERS"]
    return GROUP_THREADS * consumers + (GROUP_THREADS if consumers > 1 else WARP)


def down(config: Config, problem: Problem) -> int:
    """Rows of tiles, or of clusters of tiles, on the left side."""
    left, _ = sides(config, problem)
    return -(-left.size // (left.tile * config["CLUSTER"]))


def tiles(config: Config, problem: Problem) -> int:
    """Tiles, or clusters of tiles, of all batches."""
    _, right = sides(config, problem)
    return problem.batch * down(config, problem) * -(-right.size // right.tile)


def sums_bytes(config: Config, problem: Problem, slices: int) -> int:
    """Scratch that the sums of so many slices take: rows of the left side, of whole eights of columns."""
    left, right = sides(config, problem)
    return problem.batch * slices * left.size * -(-right.size // EIGHT) * EIGHT * 4


def slices_of(config: Config, problem: Problem) -> int:
    """Slices of k that have phases, as far as their sums have room."""
    slices = -(-phases(config, problem) // share(config, problem))
    return slices if sums_bytes(config, problem, slices) <= SUMS_BYTES else 1


def ragged(problem: Problem) -> bool:
    """Whether C's rows are not whole 16 bytes: the TMA unit cannot store them."""
    return problem.n * problem.itemsize % VECTOR_BYTES > 0


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config, with what copies or splits operands before, and the joining of slices after."""
    slices = slices_of(config, problem)
    each = share(config, problem) if slices > 1 else phases(config, problem)
    first = 4 * COUNTERS // LINE_BYTES
    if emulated(problem):
        split = halves(problem)
        leading, end, before, verdict = split.numbers, split.end, split.before, split.verdict_at
    else:
        made = packing.packed_k_major(problem, config["PACK_K"], first)
        leading, end, verdict = made.numbers, made.end, None
        before = (packing.pack_k_major(problem, config["PACK_K"]),) if config["PACK_K"] else ()
    works = slices * tiles(config, problem)
    blocks = min(works * config["CLUSTER"], config["BLOCKS"] * config["MIN_BLOCKS"] or works * config["CLUSTER"])
    left = sums_bytes(config, problem, slices) if slices > 1 else 0
    bytes_ = end * LINE_BYTES + left
    return Plan(
        grid=blocks // config["CLUSTER"] * config["CLUSTER"],
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scratch_bytes=bytes_ if bytes_ > first * LINE_BYTES else 0,
        numbers=(*leading, slices, end, each, config["GROUP_M"], works),
        before=before,
        after=(_reduce(config, problem, slices),) if slices > 1 else (),
        maps=_maps(config, problem),
        cluster=config["CLUSTER"],
        verdict_at=verdict,
    )


def _reduce(config: Config, problem: Problem, slices: int) -> Step:
    """The launch that adds up slices: a block for each piece of their sums, REDUCERS threads for each element."""
    reducers = min(MOST_REDUCERS, 1 << (slices.bit_length() - 1))
    piece = REDUCE_THREADS // reducers * VECTOR_BYTES
    kind = [pair for pair in dtype_macros(problem) if not pair[0].startswith("TRANS")]
    macros = (*kind, ("REDUCERS", str(reducers)), ("SWAP_AB", str(config["SWAP_AB"])))
    each = sums_bytes(config, problem, 1) // problem.batch
    return Step(
        Build("split_k_reduce", source(SPLIT_K_REDUCE), "split_k_reduce", macros),
        problem.batch * -(-each // piece),
        (REDUCE_THREADS, 1),
    )


def _maps(config: Config, problem: Problem) -> tuple[TensorMap, TensorMap, TensorMap]:
    left, right = sides(config, problem)
    of_left, of_right = _map(left, config, problem, 1), _map(right, config, problem, config["CLUSTER"])
    return of_left, of_right, _map_of_c(config, problem) if config["TMA_STORE"] else of_left


def _map(side: Side, config: Config, problem: Problem, parts: int) -> TensorMap:
    """What is brought of a side: all of its tile at once, or a box for each span; `parts` blocks bring parts of it."""
    width, batch = element_bytes(problem), problem.batch
    element = "float16" if emulated(problem) else "tfloat32" if problem.precision == "tf32" else problem.dtype
    if not side.along:
        row = side.size * width
        along = span(side.tile, width) // width
        sizes, box = (side.size, problem.k, batch), (along, config["BK"] // parts, 1)
        return TensorMap(side.operand, element, sizes, (row, problem.k * row), box, span(side.tile, width))
    box, operand, offset = (config["BK"], side.tile // parts, 1), side.operand, 0
    depth, row = problem.k, problem.k * width
    if emulated(problem):
        split = halves(problem)
        depth, row = 2 * split.row * LINE_BYTES // width, 2 * split.row * LINE_BYTES
        operand, offset = "scratch", LINE_BYTES * (split.at_a if side.operand == "a" else split.at_b)
    elif side.copied:
        made = packing.packed_k_major(problem, config["PACK_K"], 4 * COUNTERS // LINE_BYTES)
        at, lines = (made.at_a, made.lines_a) if side.operand == "a" else (made.at_b, made.lines_b)
        operand, offset, row = "scratch", LINE_BYTES * at, LINE_BYTES * lines
    return TensorMap(operand, element, (depth, side.size, batch), (row, side.size * row), box, LINE_BYTES, offset)


def _map_of_c(config: Config, problem: Problem) -> TensorMap:
    """The boxes that strips are stored by, as TMA_BOX_N and SWIZZLE_C of epilogue.h."""
    width, piece = problem.itemsize, piece_of(config, problem)
    box = (LINE_BYTES // width, piece, 1) if config["SWAP_AB"] else (piece, ROWS, 1)
    bytes_ = box[0] * width
    row = problem.n * width
    sizes = (problem.n, problem.m, problem.batch)
    return TensorMap("c", problem.dtype, sizes, (row, problem.m * row), box, bytes_ if bytes_ > VECTOR_BYTES else 0)


def piece_of(config: Config, problem: Problem) -> int:
    """Columns of the right side that a box of C has: as many as divide the tile's."""
    columns = config["BM"] if config["SWAP_AB"] else config["BN"]
    return next(size for size in (64, 32, 16, 8) if columns % size == 0 and size * problem.itemsize <= LINE_BYTES)


def span(side: int, width: int) -> int:
    """Bytes of a side's rows where it is stored across k: as many as divide the tile's."""
    return next((size for size in (128, 64, 32) if side * width % size == 0), VECTOR_BYTES)


def works(config: Config, problem: Problem) -> int:
    """Blocks that there would be if each had one piece of work."""
    return tiles(config, problem) * config["SPLIT_K"] * config["CLUSTER"]
