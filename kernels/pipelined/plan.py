"""The launch of pipelined: copies, registers, packing before, and split k or stream-K."""

from __future__ import annotations

from typing import Final

from kernels.common.division import tile_order
from kernels.cost_model import SECTOR_BYTES
from kernels.launch import COUNTERS, Plan, Step
from kernels.packing import pack_mn_major, packed_lines
from kernels.problem import Problem
from kernels.register_tiled.plan import shared_bytes as stages_bytes
from kernels.register_tiled.plan import slices_sums, threads
from kernels.rules import FLOAT_BYTES, LINE_BYTES, VECTOR_BYTES, WARP, blocks
from kernels.space import Config
from kernels.split_k import PARTIALS_BYTES, k_tiles, received_bytes, reduce_step
from kernels.stream_k import StreamKSchedule, stream_k_lines, stream_k_schedule

CP_SIZES: Final = (16, 8, 4)
SPLIT_K_REDUCE: Final = "pipelined/split_k_reduce.cu"
# Warps of an SM for whose registers a thread's accumulators leave room, up to so many; and with more of them.
WARPS_ON_SM: Final = ((16, 20), (32, 16), (64, 12)), ((16, 16), (32, 12))  # by K_MAJOR
FEW_WARPS: Final = 8
# Registers beside sums and two steps' operands: addresses, counters, and which copies are inside C.
REST: Final = 28
# The same where tiles stay K-major, of which NVRTC reads more ahead.
REST_K_MAJOR: Final = 84
# And what a cluster's sums take beside both.
REST_CLUSTER: Final = 8
# Elements of a pack, and what pads a line of k of a tile that stays K-major.
PACK: Final = 4


def copies(config: Config, problem: Problem) -> tuple[int, int]:
    """Copies of A and of B that a thread makes for a k tile."""
    depth = config["BK"] * problem.itemsize
    of_a, of_b = threads(config) * config["CP_SIZE_A"], threads(config) * config["CP_SIZE_B"]
    return config["BM"] * depth // of_a, config["BN"] * depth // of_b


def rounds_lie_alike(config: Config, problem: Problem) -> bool:
    """Whether in each round of copies, of either operand, a thread is as far from its first one as any other is.

    TileLoader's offsets of a thread and of a round are then added.
    """
    turned = (not config["PACK_MN"] and not problem.trans_a), (not config["PACK_MN"] and problem.trans_b)
    sides, sizes = (config["BM"], config["BN"]), (config["CP_SIZE_A"], config["CP_SIZE_B"])
    if config["K_MAJOR"]:
        across = config["WN"] // config["TN"]
        together = PACK * WARP // across, PACK * across
        return all(_lines_lie_alike(threads(config), config["BK"], *each) for each in zip(sizes, together, strict=True))
    each_side = zip(sides, sizes, turned, strict=True)
    return all(_lie_alike(threads(config), config["BK"], *each) for each in each_side)


def _lines_lie_alike(of_block: int, depth: int, cp_size: int, together: int) -> bool:
    """The same of lines that stay K-major, whose order changes within every `together` of them."""
    of_round, rest = divmod(of_block * cp_size, depth * FLOAT_BYTES)
    return rest == 0 and (of_round % together == 0 or together % of_round == 0)


def _lie_alike(of_block: int, depth: int, side: int, cp_size: int, turned: bool) -> bool:
    packs = side * FLOAT_BYTES // cp_size
    most = WARP if cp_size < VECTOR_BYTES else packs
    beside = SECTOR_BYTES["cuda"] // FLOAT_BYTES if turned else min(packs & -packs, most)
    if of_block < beside:
        return beside % of_block == 0
    of_round, lines = of_block // beside, side if turned else depth
    return of_block % beside == 0 and (lines % of_round == 0 or of_round % lines == 0)


def cp_sizes(packed: int, k_major: int, problem: Problem) -> tuple[int, int]:
    """Bytes of a cp.async of A and of B: the most up to 16 that divide a row, 4 where it is transposed on its way.

    A row of a K-major operand that stays so has its k.
    """
    if packed:
        return VECTOR_BYTES, VECTOR_BYTES
    of_k = _cp_size(problem.k * problem.itemsize) if k_major else CP_SIZES[-1]
    of_a = _cp_size(problem.m * problem.itemsize) if problem.trans_a else of_k
    return of_a, of_k if problem.trans_b else _cp_size(problem.n * problem.itemsize)


def _cp_size(row: int) -> int:
    return next(each for each in CP_SIZES if row % each == 0)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages, and of what is on its way to C: after these with stream-K, else in their place.

    What a cluster's blocks send comes after both.
    """
    stages, staged = _stages_bytes(config, problem), 0
    if config["STAGE_C"]:
        staged = threads(config) * (config["TN"] + 1) * problem.itemsize
    row_bytes = threads(config) * config["TN"] * problem.itemsize
    received = received_bytes(config["CLUSTER_K"], config["TM"] // config["SLICE_K"], row_bytes)
    return received + (stages + staged if config["STREAM_K_SMS"] else max(stages, staged))


def _stages_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages' tiles, or of all slices' accumulators if these are more."""
    if not config["K_MAJOR"]:
        return stages_bytes(config, problem)
    tiles = config["STAGES"] * (config["BM"] + config["BN"]) * (config["BK"] + PACK)
    return max(tiles, slices_sums(config)) * problem.itemsize


def warps_on_sm(config: Config) -> int:
    """The least warps that an SM of sm_90 has registers for, as pipeline.h has them."""
    accumulators = config["TM"] * config["TN"]
    return next((warps for most, warps in WARPS_ON_SM[config["K_MAJOR"]] if accumulators <= most), FEW_WARPS)


def registers(config: Config) -> int:
    """Registers with which a thread spills nothing: the least, but for K-major tiles, which NVRTC reads ahead."""
    tm, tn, more = config["TM"], config["TN"], REST_CLUSTER * (config["CLUSTER_K"] > 1)
    if config["K_MAJOR"]:
        return tm * tn + PACK * (min(tm, tn) + 2) + REST_K_MAJOR + more
    return tm * tn + 2 * (tm + tn) + REST + more


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config, with packing before and the reduction of split k after if it has these."""
    streamed = stream_k_schedule(config, problem) if config["STREAM_K_SMS"] else None
    whole = k_tiles(config, problem)
    splits = min(config["SPLIT_K"], whole) if partials_fit(config, problem) and not streamed else 1
    per_split, longer = divmod(whole, splits * config["CLUSTER_K"])
    lines_a, lines_b = packed_lines(problem) if config["PACK_MN"] else (0, 0)
    depth, at_c = problem.batch * problem.k, 4 * COUNTERS // LINE_BYTES
    at_a = at_c + _partials_lines(config, problem, splits, streamed)
    at_b = at_a + depth * lines_a
    end = at_b + depth * lines_b
    own = streamed.scalars if streamed else (0, 0, longer, 0)
    down, across = -(-problem.m // config["BM"]), -(-problem.n // config["BN"])
    order = tile_order(down, across, splits, config["GROUP_M"])
    return Plan(
        grid=streamed.blocks if streamed else blocks(config, problem) * splits * config["CLUSTER_K"],
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=end * LINE_BYTES if end > at_c else 0,
        scalars=(splits, at_c, per_split, config["GROUP_M"], at_a, lines_a, at_b, lines_b, *own, *order),
        before=(pack_mn_major(problem),) if lines_a + lines_b else (),
        after=(_reduce(problem, splits),) if splits > 1 else (),
        cluster=config["CLUSTER_K"],
    )


def _partials_lines(config: Config, problem: Problem, splits: int, streamed: StreamKSchedule | None) -> int:
    if streamed:
        return stream_k_lines(config, problem, streamed)
    return partials_lines(problem, splits) if splits > 1 else 0


def _reduce(problem: Problem, splits: int) -> Step:
    each = problem.m * problem.n * problem.itemsize
    return reduce_step(SPLIT_K_REDUCE, problem, splits, each, (("DTYPE_" + problem.dtype.upper(), "1"),))


def partials_lines(problem: Problem, splits: int) -> int:
    """Lines of 128 bytes in the workspace for the partial sums of split k."""
    return problem.batch * splits * -(-problem.m * problem.n // (LINE_BYTES // problem.itemsize))


def partials_fit(config: Config, problem: Problem) -> bool:
    """Whether the partial sums of split k are at most 64 MiB."""
    return config["SPLIT_K"] == 1 or partials_lines(problem, config["SPLIT_K"]) * LINE_BYTES <= PARTIALS_BYTES
