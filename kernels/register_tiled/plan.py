"""The launch of register_tiled: threads, shared memory, registers, split k, and the packing before."""

from __future__ import annotations

from typing import Final

from kernels.common.division import tile_order
from kernels.launch import COUNTERS, Plan
from kernels.packing import pack_mn_major, packed_lines
from kernels.problem import Problem
from kernels.rules import LINE_BYTES, blocks, registers_granted
from kernels.space import Config
from kernels.split_k import fan, k_tiles, k_tiles_per_split, partials_bytes, split_fits


def threads(config: Config) -> int:
    """Threads of a block: those of all its slices of k."""
    return config["SLICE_K"] * (config["BM"] // config["TM"]) * (config["BN"] // config["TN"])


register_limit: Final = registers_granted(threads)


def lines(config: Config, problem: Problem) -> tuple[int, int]:
    """Leading dimensions of the shared tiles of A and B: LD_A and LD_B of kernel.cu."""
    along = not config["PACK_MN"]
    return config["BM"] + 4 * (along and not problem.trans_a), config["BN"] + 4 * (along and problem.trans_b)


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages with their padding, or of all slices' accumulators if these are more."""
    tiles = config["STAGES"] * config["BK"] * sum(lines(config, problem))
    return max(tiles, slices_sums(config)) * problem.itemsize


def slices_sums(config: Config) -> int:
    """Accumulators that slices of k leave in shared memory, where stages were."""
    return config["SLICE_K"] * config["BM"] * config["BN"] if config["SLICE_K"] > 1 else 0


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a config, correct also on problems for which it is not legal."""
    per_split = k_tiles_per_split(config, problem) if split_fits(config, problem) else k_tiles(config, problem)
    splits = -(-k_tiles(config, problem) // per_split)
    bare = 4 * COUNTERS + partials_bytes(config, problem, splits) if splits > 1 else 0
    lines_a, lines_b = packed_lines(problem) if config["PACK_MN"] else (0, 0)
    depth, at_a = problem.batch * problem.k, -(-max(bare, 4 * COUNTERS) // LINE_BYTES)
    at_b = at_a + depth * lines_a
    down, across = -(-problem.m // config["BM"]), -(-problem.n // config["BN"])
    own = (splits, fan(splits), per_split, config["GROUP_M"], at_a, lines_a, at_b, lines_b)
    return Plan(
        grid=blocks(config, problem) * splits,
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        workspace_bytes=(at_b + depth * lines_b) * LINE_BYTES if lines_a + lines_b else bare,
        scalars=(*own, *tile_order(down, across, splits, config["GROUP_M"])),
        before=(pack_mn_major(problem),) if lines_a + lines_b else (),
    )


BUFFERED: Final = 2
# Registers beside sums, operands and what is under way, as NVRTC 12.9 allots them: addresses, sizes, counters; and
# what is lost between the aligned pairs that doubles live in.
ADDRESSES: Final = 44
GAPS: Final = 40
SLICES: Final = 8  # a slice's part of C in the epilogue


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing."""
    tm, tn, words = config["TM"], config["TN"], problem.itemsize // 4
    prefetched = (config["BM"] + config["BN"]) * config["BK"] // threads(config) if config["STAGES"] <= BUFFERED else 0
    return words * (tm * tn + tm + tn + prefetched) + ADDRESSES + GAPS * (words - 1) + SLICES * (config["SLICE_K"] > 1)
