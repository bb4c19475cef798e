"""The launch of hopper: threads, shared memory, tensor maps, split k, and the steps before and after."""

from __future__ import annotations

from typing import Final, NamedTuple

from kernels import packing
from kernels.common.division import tile_order
from kernels.fp32_emulation import split_operands
from kernels.launch import COUNTERS, Plan, Step, TensorMap, dtype_macros
from kernels.problem import Problem, smaller
from kernels.rules import CLUSTERED_SMS, FLOAT_BYTES, LINE_BYTES, VECTOR_BYTES, WARP
from kernels.space import Config
from kernels.split_k import PARTIALS_BYTES, k_tiles, k_tiles_per_split, reduce_step

SPLIT_K_REDUCE: Final = "hopper/split_k_reduce.cu"
# As in epilogue.h: an epilogue tile of 64 rows of 128 bytes; and a stage's two mbarriers.
EPILOGUE_BYTES: Final = 64 * LINE_BYTES
# Accumulators of a thread for whose pieces a consumer has two epilogue tiles: with more, stages have the room.
DOUBLE_BUFFERED: Final = 128
BARRIER_BYTES: Final = 16
COPIED_BARRIER_BYTES: Final = 8  # and the third one, if operands are realigned
ARRIVALS_BYTES: Final = 16  # with a split's number among those that have arrived
# Splits that the last block to arrive adds up, beside accumulators of a thread, by consumers, that leave registers for
# others' sums: as REDUCED_IN_LAUNCH of tile_reduce.h. Another launch adds up what is more.
MOST_IN_LAUNCH: Final = 8
MOST_BESIDE_SUMS: Final = {1: 64, 2: 64, 3: 0}
# What the 128-byte swizzle repeats after, where the tiles of a stage begin (PTX ISA, "Swizzling Modes").
SWIZZLE_ATOM: Final = 1024
WARPGROUP: Final = 128
# Rows of one instruction (PTX ISA, "wgmma.mma_async").
WGMMA_M: Final = 64
# The consumers of a block whose threads may have the most registers.
TOGETHER: Final = 2
EIGHT: Final = 8


class TileOperand(NamedTuple):
    """An operand as wgmma's LHS or RHS: `tile` of its `size` rows (of the RHS columns) a block, and its layout.

    A packed one lies K-major in the workspace; a realigned one is copied by the producer's threads, not by TMA.
    """

    operand: str
    tile: int
    size: int
    k_major: bool
    packed: bool
    realigned: bool


def emulated(problem: Problem) -> bool:
    """Whether operands are float32, split into float16 terms."""
    return problem.precision == "emulated"


def is_pingpong(config: Config) -> bool:
    """Whether a tile has rows for one consumer alone, of several, which take tiles in turn."""
    return config["CONSUMERS"] > 1 and (config["BN"] if config["SWAP_AB"] else config["BM"]) == WGMMA_M


def sharers(config: Config) -> int:
    """Consumers that share a tile."""
    return 1 if is_pingpong(config) else config["CONSUMERS"]


def planes(problem: Problem) -> int:
    """Matrices that an operand has in a stage: two of emulated float32, its high and its low terms."""
    return 2 if emulated(problem) else 1


def element_bytes(problem: Problem) -> int:
    """Bytes of an element in shared memory, as the tensor cores multiply it."""
    return 2 if emulated(problem) else problem.itemsize


def tile_operands(config: Config, problem: Problem) -> tuple[TileOperand, TileOperand]:
    """The LHS, A or with SWAP_AB B, and the RHS."""
    packed, realigned = config["PACK_K"], config["REALIGN"]
    k_major = packed | (realigned if problem.precision == "tf32" else 0) | (packing.A | packing.B) * emulated(problem)
    k_major_a = bool(k_major & packing.A) or not problem.trans_a
    k_major_b = bool(k_major & packing.B) or problem.trans_b
    a = TileOperand("a", config["BM"], problem.m, k_major_a, bool(packed & packing.A), bool(realigned & packing.A))
    b = TileOperand("b", config["BN"], problem.n, k_major_b, bool(packed & packing.B), bool(realigned & packing.B))
    return (b, a) if config["SWAP_AB"] else (a, b)


def lhs_tile(config: Config, problem: Problem) -> tuple[int, int]:
    """Rows of a tile and rows of the LHS, without the records of tile_operands: rules ask it of most configs."""
    return (config["BN"], problem.n) if config["SWAP_AB"] else (config["BM"], problem.m)


def rhs_tile(config: Config, problem: Problem) -> tuple[int, int]:
    """Columns of a tile and columns of the RHS."""
    return (config["BM"], problem.m) if config["SWAP_AB"] else (config["BN"], problem.n)


def stage_bytes(config: Config, problem: Problem) -> int:
    """Bytes of both operands' k tiles, a realigned one's with 16 bytes more for each of its lines, as in wgmma.h."""
    nbytes = planes(problem) * (config["BM"] + config["BN"]) * LINE_BYTES
    if config["REALIGN"]:
        lines = (lines_copied(side, config, problem) for side in tile_operands(config, problem))
        nbytes += sum(-(-count * VECTOR_BYTES // SWIZZLE_ATOM) for count in lines) * SWIZZLE_ATOM
    return nbytes


def lines_copied(side: TileOperand, config: Config, problem: Problem) -> int:
    """Contiguous lines of global memory in a realigned operand's k tile: its rows, or if it is MN-major its k's."""
    if not side.realigned:
        return 0
    mn_major = problem.trans_a if side.operand == "a" else not problem.trans_b
    return config["BK"] if mn_major else side.tile


def barrier_bytes(config: Config) -> int:
    """Bytes of a stage's mbarriers."""
    return BARRIER_BYTES + (COPIED_BARRIER_BYTES if config["REALIGN"] else 0)


def epilogue_bytes(config: Config) -> int:
    """Bytes of the consumers' epilogue tiles beside the stages, and what they tell each other of splits."""
    if config["C_IN_STAGES"]:
        return ARRIVALS_BYTES
    buffers = 2 if config["BM"] * config["BN"] <= WARPGROUP * sharers(config) * DOUBLE_BUFFERED else 1
    return config["CONSUMERS"] * buffers * EPILOGUE_BYTES + ARRIVALS_BYTES


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages with their mbarriers, of the epilogue tiles, and of a cluster's partial sums."""
    stages = config["STAGES"] * (stage_bytes(config, problem) + barrier_bytes(config))
    return stages + epilogue_bytes(config) + received_bytes(config, problem)


def threads(config: Config) -> int:
    """Threads of a block: the consumer warpgroups and a producer.

    This is a warp, a warpgroup if it gives up registers, or three if they copy what TMA cannot.
    """
    consumers = config["CONSUMERS"]
    return WARPGROUP * consumers + (3 * WARPGROUP if config["REALIGN"] else WARPGROUP if consumers > 1 else WARP)


def tile_rows(config: Config, problem: Problem) -> int:
    """Rows of tiles, or of clusters of tiles, along the LHS."""
    tile, rows = lhs_tile(config, problem)
    return -(-rows // (tile * config["CLUSTER"]))


def tiles(config: Config, problem: Problem) -> int:
    """Tiles, or clusters of tiles, of all batches."""
    tile, columns = rhs_tile(config, problem)
    return problem.batch * tile_rows(config, problem) * -(-columns // tile)


def accumulators(config: Config, problem: Problem) -> int:
    """Accumulators of a consumer's thread."""
    rows, columns = lhs_tile(config, problem)[0], rhs_tile(config, problem)[0]
    return rows // sharers(config) * columns // 128 * (3 if emulated(problem) else 1)


def is_reduced_in_launch(config: Config, problem: Problem, splits: int) -> bool:
    """Whether the last block of a tile to arrive adds up all splits' partial sums, so that no launch has to.

    `splits` are those that are not empty, as the kernel counts them: of a short k fewer than SPLIT_K.
    """
    beside = accumulators(config, problem) <= MOST_BESIDE_SUMS[config["CONSUMERS"]]
    alone = problem.precision != "tf32" or (config["MIN_BLOCKS"] == 1 and config["REALIGN"] == 0)
    return beside and alone and (config["SPLIT_K"] <= MOST_IN_LAUNCH or splits <= MOST_IN_LAUNCH)


def partials_bytes(config: Config, problem: Problem, splits: int) -> int:
    """Workspace for the partial sums: of whole tiles, or rows of the LHS with columns padded to a multiple of 8."""
    if is_reduced_in_launch(config, problem, splits):
        return tiles(config, problem) * config["CLUSTER"] * splits * config["BM"] * config["BN"] * 4
    rows, columns = lhs_tile(config, problem)[1], rhs_tile(config, problem)[1]
    return problem.batch * splits * rows * -(-columns // EIGHT) * EIGHT * 4


def split_fits(config: Config, problem: Problem, splits: int) -> bool:
    """Whether there are counters for all tiles, two each, and the partial sums are at most 64 MiB."""
    joined = is_reduced_in_launch(config, problem, splits)
    counted = 2 * tiles(config, problem) * config["CLUSTER"] if joined else 0
    return counted <= COUNTERS and partials_bytes(config, problem, splits) <= PARTIALS_BYTES


def splits_of(config: Config, problem: Problem) -> int:
    """Splits of k that are not empty; 1 if their partial sums or counters do not fit."""
    splits = -(-k_tiles(config, problem) // k_tiles_per_split(config, problem))
    return splits if splits == 1 or split_fits(config, problem, splits) else 1


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config, with the steps that pack or split operands before and reduce split k after."""
    splits = splits_of(config, problem)
    each = -(-(k_tiles_per_split(config, problem) if splits > 1 else k_tiles(config, problem)) // config["CLUSTER_K"])
    first = 4 * COUNTERS // LINE_BYTES
    if emulated(problem):
        split = split_operands(problem)
        leading, end, before, verdict = split.scalars, split.end, split.before, split.verdict_at
    else:
        made = packing.packed_k_major(problem, config["PACK_K"], first)
        leading, end, verdict = made.scalars, made.end, None
        before = (packing.pack_k_major(problem, config["PACK_K"]),) if config["PACK_K"] else ()
    work_tiles = splits * tiles(config, problem)
    tile, columns = rhs_tile(config, problem)
    order = tile_order(tile_rows(config, problem), -(-columns // tile), splits, config["GROUP_M"])
    cluster = cluster_size(config)
    blocks = smaller(work_tiles * cluster, config["BLOCKS"] * config["MIN_BLOCKS"] or work_tiles * cluster)
    partials = partials_bytes(config, problem, splits) if splits > 1 else 0
    by_launch = splits > 1 and not is_reduced_in_launch(config, problem, splits)
    workspace = end * LINE_BYTES + partials
    return Plan(
        grid=blocks // cluster * cluster,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=workspace if workspace > first * LINE_BYTES else 0,
        scalars=(*leading, splits, end, each, config["GROUP_M"], work_tiles, *order),
        before=before,
        after=(_reduce(config, problem, splits),) if by_launch else (),
        maps=_maps(config, problem),
        cluster=cluster,
        verdict_at=verdict,
    )


def _reduce(config: Config, problem: Problem, splits: int) -> Step:
    dtype = (pair for pair in dtype_macros(problem) if not pair[0].startswith("TRANS"))
    each = partials_bytes(config, problem, splits) // (problem.batch * splits)
    return reduce_step(SPLIT_K_REDUCE, problem, splits, each, (*dtype, ("SWAP_AB", str(config["SWAP_AB"]))))


def _maps(config: Config, problem: Problem) -> tuple[TensorMap, ...]:
    """The tensor maps of the LHS, the RHS and C, or another's where TMA does not move it; none if it moves nothing."""
    lhs, rhs = tile_operands(config, problem)
    of_lhs = None if lhs.realigned else _map(lhs, config, problem, 1)
    of_rhs = None if rhs.realigned else _map(rhs, config, problem, config["CLUSTER"])
    of_c = _map_of_c(config, problem) if config["TMA_STORE"] else None
    other = of_lhs or of_rhs or of_c
    return (of_lhs or other, of_rhs or other, of_c or other) if other else ()


def _map(side: TileOperand, config: Config, problem: Problem, parts: int) -> TensorMap:
    """The tensor map of an operand: a box is its k tile, or a swizzle of it; each of `parts` blocks loads a part."""
    width, batch = element_bytes(problem), problem.batch
    element = "float16" if emulated(problem) else "tfloat32" if problem.precision == "tf32" else problem.dtype
    if not side.k_major:
        row = side.size * width
        row_elements = swizzle_bytes(side.tile, width) // width
        sizes, box = (side.size, problem.k, batch), (row_elements, config["BK"] // parts, 1)
        return TensorMap(side.operand, element, sizes, (row, problem.k * row), box, swizzle_bytes(side.tile, width))
    box, operand, offset = (config["BK"], side.tile // parts, 1), side.operand, 0
    depth, row = problem.k, problem.k * width
    if emulated(problem):
        split = split_operands(problem)
        depth, row = 2 * split.row * LINE_BYTES // width, 2 * split.row * LINE_BYTES
        operand, offset = "workspace", LINE_BYTES * (split.at_a if side.operand == "a" else split.at_b)
    elif side.packed:
        made = packing.packed_k_major(problem, config["PACK_K"], 4 * COUNTERS // LINE_BYTES)
        at, lines = (made.at_a, made.lines_a) if side.operand == "a" else (made.at_b, made.lines_b)
        operand, offset, row = "workspace", LINE_BYTES * at, LINE_BYTES * lines
    return TensorMap(operand, element, (depth, side.size, batch), (row, side.size * row), box, LINE_BYTES, offset)


def _map_of_c(config: Config, problem: Problem) -> TensorMap:
    """The tensor map of C: boxes of TMA_BOX_N columns in SWIZZLE_C, as in epilogue.h."""
    width, piece = problem.itemsize, store_box_columns(config, problem)
    box = (LINE_BYTES // width, piece, 1) if config["SWAP_AB"] else (piece, WGMMA_M, 1)
    bytes_ = box[0] * width
    row = problem.n * width
    sizes = (problem.n, problem.m, problem.batch)
    return TensorMap("c", problem.dtype, sizes, (row, problem.m * row), box, bytes_ if bytes_ > VECTOR_BYTES else 0)


def store_box_columns(config: Config, problem: Problem) -> int:
    """Columns of the RHS in a box of C: as many as are stored at once, or what divides a tile of one or two of them."""
    columns = config["BM"] if config["SWAP_AB"] else config["BN"]
    at_once = LINE_BYTES // problem.itemsize
    whole = columns > 2 * at_once or columns % at_once == 0
    return at_once if whole else next(size for size in (32, 16, 8) if columns % size == 0)


def swizzle_bytes(side: int, width: int) -> int:
    """The swizzle of an MN-major operand: the longest that divides its tile's rows."""
    return next((size for size in (128, 64, 32) if side * width % size == 0), VECTOR_BYTES)


def work_tiles(config: Config, problem: Problem) -> int:
    """Blocks of a launch in which none is persistent."""
    return tiles(config, problem) * config["SPLIT_K"] * cluster_size(config)


def cluster_size(config: Config) -> int:
    """Blocks of a cluster."""
    return config["CLUSTER"] * config["CLUSTER_K"]


def clustered_sms(blocks: int, sms: int) -> int:
    """SMs that clusters of so many blocks find room on."""
    return int(sms * CLUSTERED_SMS.get(blocks, 1))


def k_tiles_per_block(config: Config, problem: Problem) -> int:
    """K tiles of a block's part of k, whether its partial sums are added up in the cluster or in the workspace."""
    return -(-k_tiles_per_split(config, problem) // config["CLUSTER_K"])


def received_bytes(config: Config, problem: Problem) -> int:
    """Partial sums that a cluster's blocks send to one of them, as in cluster_reduce.h."""
    (tile, _), (columns, _), parts = lhs_tile(config, problem), rhs_tile(config, problem), config["CLUSTER_K"]
    across = LINE_BYTES // problem.itemsize
    pieces = tile // sharers(config) // WGMMA_M * -(-columns // across)
    of_piece = config["CONSUMERS"] * WGMMA_M * min(across, columns) * FLOAT_BYTES
    return -(-pieces // parts) * (parts - 1) * of_piece
