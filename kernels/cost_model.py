"""The cost model: bytes, operations and occupancy of a launch, and a bound on its time.

Every figure is exact integer arithmetic over a config and a problem; only `predict` is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, isqrt
from typing import Final

from kernels.arithmetic import WMMA, peak_by
from kernels.device import Device, Limits
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config, Space

# CUDA's allocation units, the same on every architecture from sm_75 to sm_120 (CUDA Occupancy Calculator).
REGISTER_UNIT: Final = 256
WARP_UNIT: Final = 4
# What a device fetches for one element where threads or loop steps are a row apart: a sector, or a processor's line.
SECTOR_BYTES: Final = {"cuda": 32, "opencl": 64}
# With one element to a thread every product needs loads, addresses and a wait: how far below the float32 peak that is.
# TM x TN elements share their TM + TN loads, each product 1 / TM + 1 / TN where it was 2.
SLOWNESS: Final = 64
LAUNCH_SECONDS: Final = 1e-5
# The tile that a warp multiplies by one of wmma's instructions.
WMMA_SIDE: Final = 16
# What bringing one element into a tile costs, in products: an address, a comparison, a load, a store.
READ_WEIGHT: Final = 4
# Adding up slices of k, in products of an SM: what writing and reading an element of its sums costs, and the waits of
# one block for the others, some microseconds.
JOIN_WEIGHT: Final = 16
JOIN_WAIT: Final = 800_000
# Clocks of a second in which kernels' own models count: an H200's, to whose times they are fitted.
CLOCK: Final = 1.7e9
# Burdens this close are equal: the order in which the shapes are listed decides.
CLOSE: Final = 1.03

Matrix = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks on an SM, the fraction of its threads, and the resource that limits them."""

    blocks_per_sm: int
    fraction: float
    limited_by: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """One launch by numbers: bytes of global memory, flops, tiles, shared bytes and threads a block, occupancy.

    `flops_owned` counts the threads that own an element of C and the k there is, `flops_launched` all threads over
    whole tiles. `intensity` is owned flops over bytes read. `waves` is blocks over those that run at once.
    """

    bytes_read: int
    bytes_written: int
    flops_owned: int
    flops_launched: int
    intensity: float
    tiles_m: int
    tiles_n: int
    blocks: int
    edge_tiles: int
    shared_bytes: int
    threads: int
    occupancy: Occupancy | None
    waves: float | None


def occupancy(limits: Limits, threads: int, shared_bytes: int, registers: int) -> Occupancy | None:
    """Blocks of `threads` with `shared_bytes` each and `registers` a thread (0: unknown) that an SM holds at once.

    As cuOccupancyMaxActiveBlocksPerMultiprocessor counts them; None if the device has no figures of an SM.
    """
    if not limits.threads_per_sm:
        return None
    warps = -(-threads // limits.warp)
    counts = {
        "threads": limits.threads_per_sm // limits.warp // warps,
        "blocks": limits.blocks_per_sm,
        "shared memory": _blocks_by_shared(limits, shared_bytes),
        "registers": _blocks_by_registers(limits, warps, registers),
    }
    limited_by = min(counts, key=lambda name: counts[name])
    blocks = counts[limited_by]
    return Occupancy(blocks, blocks * warps * limits.warp / limits.threads_per_sm, limited_by)


def turns(
    limits: Limits, blocks: int, threads: int, shared_bytes: int, registers: int, share: float = 1
) -> tuple[int, int]:
    """Blocks of the busiest SM, of a grid of `blocks`, and how often it begins as many as it holds at once.

    They find room on this share of SMs.
    """
    busy = -(-blocks // max(int(share * limits.sms), 1))
    resident = occupancy(limits, threads, shared_bytes, registers)
    return busy, -(-busy // max(resident.blocks_per_sm if resident else 1, 1))


def sectors_touched(run: int, problem: Problem) -> float:
    """Sectors that `run` bytes stored at once along a row of C touch, in the mean of rows.

    Rows begin anywhere in a sector that their length allows, and what a run has of a sector is stored by itself.
    """
    sector = SECTOR_BYTES["cuda"]
    return run / sector + 1 - gcd(run, problem.n * problem.itemsize, sector) / sector


def moved_bytes(run: int, problem: Problem) -> float:
    """Bytes of both operands, and of all sectors that stores of `run` bytes of C at once touch."""
    stored = SECTOR_BYTES["cuda"] * problem.c_bytes / run * sectors_touched(run, problem)
    return problem.bytes - problem.c_bytes + stored


def _blocks_by_shared(limits: Limits, shared_bytes: int) -> int:
    # From sm_80 the system reserves some of each block's shared memory, and the unit is half as large.
    unit = 128 if limits.shared_bytes_reserved else 256
    taken = -(-(shared_bytes + limits.shared_bytes_reserved) // unit) * unit
    return limits.shared_bytes_per_sm // taken if taken else limits.blocks_per_sm


def _blocks_by_registers(limits: Limits, warps: int, registers: int) -> int:
    if not registers:
        return limits.blocks_per_sm
    a_warp = -(-registers * limits.warp // REGISTER_UNIT) * REGISTER_UNIT
    # An SM's four parts each hold whole warps; a block must fit even where its warps fill the parts unevenly.
    if registers > limits.registers_per_thread or _round_up(warps, WARP_UNIT) * a_warp > limits.registers_per_sm:
        return 0
    return limits.registers_per_sm // WARP_UNIT // a_warp * WARP_UNIT // warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def analyse(kernel: Kernel, config: Config, problem: Problem, device: Device, registers: int = 0) -> Analysis:
    """The analysis of one launch of a config; `registers` a thread, if known, limit the occupancy too."""
    plan, config = kernel.plan(config, problem), kernel.modelled(config)
    width, height = plan.block
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    bm, bn, bk = config["BM"], config["BN"], config.get("BK", 1)
    tiles_m, tiles_n = -(-m // bm), -(-n // bn)
    bytes_read = batch * k * problem.itemsize * sum(_reads(config, problem))
    resident = occupancy(device.limits, width * height, plan.shared_bytes, registers)
    together = device.limits.sms * resident.blocks_per_sm if resident else 0
    return Analysis(
        bytes_read=bytes_read,
        bytes_written=problem.c_bytes,
        flops_owned=problem.flops,
        flops_launched=2 * batch * tiles_m * bm * tiles_n * bn * _round_up(k, bk),
        intensity=problem.flops / bytes_read,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        blocks=plan.grid,
        edge_tiles=batch * (tiles_m * tiles_n - (m // bm) * (n // bn)),
        shared_bytes=plan.shared_bytes,
        threads=width * height,
        occupancy=resident,
        waves=plan.grid / together if together else None,
    )


def _reads(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements of A and of B read for each step along k: a tile's rows once for each tile, or once for each thread."""
    m, n = problem.m, problem.n
    if "BK" not in config:
        return m * n, m * n
    return m * -(-n // config["BN"]), n * -(-m // config["BM"])


def tile_bytes(bm: int, bn: int, bk: int, itemsize: int = 4) -> int:
    """Shared bytes of one tile of A and one of B without padding: 8, 32 and 128 KiB for squares of 32, 64 and 128."""
    return (bm + bn) * bk * itemsize


def predict(kernel: Kernel, config: Config, problem: Problem, device: Device) -> float:
    """Seconds of one launch, from above: a roofline with no cache, and arithmetic slowed down by its loads.

    If threads or warps have tiles, blocks are few and large, and the busiest SM counts. It orders configs and sets
    deadlines (ten times this); it is no forecast.
    """
    limits, known = device.limits, analyse(kernel, config, problem, device)
    plan, config = kernel.plan(config, problem), kernel.modelled(config)
    besides = len(plan.before) + len(plan.after)
    path = kernel.instructions
    peak = peak_by(path, problem, device)
    lanes = _round_up(known.threads, max(limits.warp, 1)) / known.threads
    steps = zip(_reads(config, problem), _fetched(config, problem, device), strict=True)
    moved = problem.c_bytes + problem.batch * problem.k * sum(count * size for count, size in steps)
    # The workspace is written once and read once, and a step before or after reads operands or writes C once more.
    moved += 2 * plan.workspace_bytes + besides * problem.bytes
    work = known.flops_launched * lanes * _rounding(known, config, problem)
    if _side(config, "M") > 1:
        work *= _round_up(known.blocks, max(limits.sms, 1)) / known.blocks
    joined = 2 * _joining(config) * max(limits.sms, 1) / limits.peak
    started = LAUNCH_SECONDS * (1 + besides) + joined
    loads = 2 / WMMA_SIDE if path == WMMA else _loads(config)
    loading = work * SLOWNESS * loads / 2 / max(peak, limits.peak)
    return started + moved / limits.bandwidth + work / peak + loading


def _joining(config: Config) -> int:
    """The cost of reducing split k for the last block, in products: about twice the square root of the splits."""
    slices = config.get("SPLIT_K", 1)
    reads = 2 * (isqrt(slices - 1) + 1) * config["BM"] * config["BN"]
    return JOIN_WAIT + JOIN_WEIGHT * reads if slices > 1 else 0


def _rounding(known: Analysis, config: Config, problem: Problem) -> float:
    """How much more of k is launched where each of several slices ends in a phase of its own."""
    slices, bk = max(known.blocks // (known.tiles_m * known.tiles_n * problem.batch), 1), config.get("BK", 1)
    return slices * _round_up(-(-problem.k // slices), bk) / _round_up(problem.k, bk)


def _loads(config: Config) -> float:
    """Elements that a thread reads for each product: 2 if it has one element of C, fewer with a tile.

    The tile is the thread's, else its warp's, else that of the block's CONSUMERS.
    """
    return 1 / _side(config, "M") + 1 / _side(config, "N")


def _side(config: Config, side: str) -> int:
    shared = config["B" + side] // (config["CONSUMERS"] if side == "M" else 1) if "CONSUMERS" in config else 1
    return config.get("T" + side, config.get("W" + side, shared))


def _fetched(config: Config, problem: Problem, device: Device) -> tuple[int, int]:
    """Bytes fetched for an element of A and of B: a whole sector if its neighbours are not read at the same time."""
    own, sector = problem.itemsize, SECTOR_BYTES[device.platform]
    if "BK" in config:
        along_a = config["BM" if problem.trans_a else "BK"]
        along_b = config["BK" if problem.trans_b else "BN"]
        return max(own, sector // along_a), max(own, sector // along_b)
    return own, sector if problem.trans_b else max(own, sector // config["BN"])


def lightest(space: Space, shapes: Sequence[Mapping[str, int]], problem: Problem, device: Device) -> Config:
    """The first legal config of `shapes` that leaves the busiest SM little to do; else the space's first legal one.

    Large tiles read less for each product, small ones waste less at the edges and spread a small C over more SMs.
    Where the device allows no config at all, the space's first one, which `launch` then refuses by its rule.
    """
    configs = [space.config(shape) for shape in shapes]
    legal = [config for config in configs if space.refusal(config, problem, device) is None]
    if legal:
        burdens = [_burden(config, problem, device.limits) for config in legal]
        return next(config for config, burden in zip(legal, burdens, strict=True) if burden <= CLOSE * min(burdens))
    return space.first_legal(problem, device)


def _burden(config: Config, problem: Problem, limits: Limits) -> float:
    """Products and reads of the busiest SM, in products: threads count in whole warps, k in whole k tiles.

    A product costs its loads and an FMA, a read into a tile READ_WEIGHT products of three.
    """
    bm, bn, slices = config["BM"], config["BN"], config.get("SPLIT_K", 1)
    blocks = problem.batch * -(-problem.m // bm) * -(-problem.n // bn) * slices
    reads = bm + bn if "BK" in config else 0
    depth = _round_up(-(-problem.k // slices), config.get("BK", 1))
    phase = _round_up(bm * bn, max(limits.warp, 1)) * (1 + _loads(config)) + READ_WEIGHT * 3 * reads
    return -(-blocks // max(limits.sms, 1)) * depth * phase + _joining(config)


def trace(a: Matrix, b: Matrix, tile: int) -> Iterator[list[list[int]]]:
    """The accumulators of C's first tile, of block (0,0), after each k tile.

    `a` is m x k and `b` k x n, in rows; a tile past an edge is as short as the matrices are.
    """
    columns = range(min(tile, len(b[0])))
    sums = [[0 for _ in columns] for _ in a[:tile]]
    for start in range(0, len(b), tile):
        phase = range(start, min(start + tile, len(b)))
        sums = [
            [row[x] + sum(line[q] * b[q][x] for q in phase) for x in columns]
            for row, line in zip(sums, a[:tile], strict=True)
        ]
        yield sums
