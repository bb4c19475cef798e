"""batched: many small products, of which a block has the operands of several on their way at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Plan
from kernels.model import lightest
from kernels.naive import MAX_GRID
from kernels.problem import Problem
from kernels.space import Config, Space

LARGEST: Final = 128
WARP: Final = 32
VECTOR_BYTES: Final = 16
# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
# A block of more threads waits for more copies before its first product, and for more threads at each barrier.
MOST_THREADS: Final = 256
# So many registers for sums leave too few beside them on some architecture: NVRTC spills.
LARGE: Final = 128
# Registers beside sums and operands, as NVRTC 12.9 allots them: places of what is copied and read, sizes, counters.
ADDRESSES: Final = 40
GAPS: Final = 32  # between the aligned pairs that doubles live in
# Sums of a thread, in bytes, that leave its block no room beside others.
LARGE_BYTES: Final = 256


def team(config: Config) -> int:
    """Threads of one product."""
    return config["BM"] // config["TM"] * (config["BN"] // config["TN"])


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["PER"] * team(config)


def blocks(config: Config, problem: Problem) -> int:
    """Blocks of the one-dimensional grid: one for each tile of C of PER products."""
    tiles = -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])
    return -(-problem.batch // config["PER"]) * tiles


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of the phases that are in shared memory, of the tiles of PER products."""
    stage = config["PER"] * config["BK"] * (config["BM"] + config["BN"])
    return config["STAGES"] * stage * problem.itemsize


def registers(config: Config, problem: Problem) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    tm, tn, wide, words = config["TM"], config["TN"], vector(problem), problem.itemsize // 4
    read = tm * (1 if problem.trans_a else wide) + tn * (wide if problem.trans_b else 1)
    return words * (tm * tn + read) + ADDRESSES + GAPS * (words - 1)


def granted(config: Config, device: Device) -> int:
    """Registers that the compiler may give a thread so that an SM holds HELD blocks; 0 where the device has none."""
    limits = device.limits
    each = limits.registers_per_sm // (threads(config) * config["HELD"]) // 8 * 8
    return min(each, limits.registers_per_thread)


def vector(problem: Problem) -> int:
    """Elements in 16 bytes."""
    return VECTOR_BYTES // problem.itemsize


def _least(config: Mapping[str, int], problem: Problem) -> bool:
    return config["TN"] >= vector(problem) and config["TM"] >= (vector(problem) if problem.trans_a else 1)


def _teams(config: Config, _: Problem, __: Device) -> bool:
    return config["BM"] >= 2 * config["TM"] and config["BN"] >= config["TN"]


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return WARP <= threads(config) <= min(device.limits.threads, MOST_THREADS)


def _vectors_divide(config: Config, problem: Problem, _: Device) -> bool:
    turn = team(config) * vector(problem)
    return config["BM"] * config["BK"] % turn == 0 and config["BN"] * config["BK"] % turn == 0


def _not_beyond(config: Config, problem: Problem, _: Device) -> bool:
    sides = {"BM": problem.m, "BN": problem.n, "BK": problem.k}
    return all(config[name] < 2 * max(side, 8) for name, side in sides.items())


def _one_tile(config: Config, problem: Problem, _: Device) -> bool:
    whole = config["BM"] >= problem.m and config["BN"] >= problem.n
    return config["PER"] == 1 or (whole and (config["PER"] < 2 * problem.batch or threads(config) <= WARP))


def _stages(config: Config, problem: Problem, device: Device) -> bool:
    return config["STAGES"] == 1 or (
        (config["STAGES"] - 1) * config["BK"] < problem.k and device.capability >= COPIES_SINCE
    )


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return blocks(config, problem) <= MAX_GRID


def _registers_fit(config: Config, problem: Problem, device: Device) -> bool:
    few = config["TM"] * config["TN"] * problem.itemsize // 4 < LARGE
    return not device.limits.registers_per_sm or (few and registers(config, problem) <= granted(config, device))


def _bound_binds(config: Config, _: Problem, device: Device) -> bool:
    return config["HELD"] == 1 or 0 < granted(config, device) < device.limits.registers_per_thread


def _held_fit(config: Config, problem: Problem, device: Device) -> bool:
    limits, held = device.limits, config["HELD"]
    shared = held * (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    return held == 1 or (shared <= limits.shared_bytes_per_sm and held * threads(config) <= limits.threads_per_sm)


def _plan(config: Config, problem: Problem) -> Plan:
    grid, shared = blocks(config, problem), shared_bytes(config, problem)
    return Plan(grid, (threads(config), 1), shared, numbers=(problem.batch,))


_TILE: Final = ("BM", "BN", "TM", "TN")
SPACE: Final = Space(
    parameters={
        "BM": (8, 16, 32, 64, 128),
        "BN": (8, 16, 32, 64, 128),
        "TM": (2, 4, 8),
        "TN": (2, 4, 8, 16),
        "BK": (8, 16, 32, 64, 128),
        "PER": (1, 2, 4, 8, 16, 32),
        "STAGES": (1, 2, 3, 4),
        "HELD": (1, 2, 4, 8),
    },
    rules={
        "a tile or a phase twice as large as the product": _not_beyond,
        "fewer neighbours a thread than 16 bytes hold": lambda config, problem, _: _least(config, problem),
        "no two threads down a tile, or none across": _teams,
        "more products a block than there are, or than one tile each": _one_tile,
        "fewer threads a block than a warp has, or more than wait well for each other": _threads_fit,
        "copies of 16 bytes that do not divide evenly among the threads": _vectors_divide,
        "more stages than there are phases, or where nothing is copied asynchronously": _stages,
        "more shared memory a block than the device allows": _shared_fits,
        "more than 2^31 - 1 blocks": _grid_fits,
        "more registers a thread than there are": _registers_fit,
        "a bound on registers that binds nothing": _bound_binds,
        "more blocks to hold at once than an SM has room for": _held_fit,
    },
    reads={
        "a tile or a phase twice as large as the product": ("BM", "BN", "BK"),
        "fewer neighbours a thread than 16 bytes hold": ("TM", "TN"),
        "no two threads down a tile, or none across": _TILE,
        "more products a block than there are, or than one tile each": (*_TILE, "PER"),
        "fewer threads a block than a warp has, or more than wait well for each other": (*_TILE, "PER"),
        "copies of 16 bytes that do not divide evenly among the threads": (*_TILE, "BK"),
        "more stages than there are phases, or where nothing is copied asynchronously": ("BK", "STAGES"),
        "more shared memory a block than the device allows": ("BM", "BN", "BK", "PER", "STAGES"),
        "more than 2^31 - 1 blocks": ("BM", "BN", "PER"),
        "more registers a thread than there are": (*_TILE, "PER", "HELD"),
        "a bound on registers that binds nothing": (*_TILE, "PER", "HELD"),
        "more blocks to hold at once than an SM has room for": (*_TILE, "BK", "PER", "STAGES", "HELD"),
    },
)


Tile = tuple[int, int, int, int]
# What defaults are chosen from, as BM, BN, TM, TN, largest first.
_CUDA: Final[tuple[Tile, ...]] = (
    (64, 64, 8, 8),
    (64, 64, 8, 4),
    (64, 32, 8, 4),
    (32, 64, 4, 8),
    (32, 32, 4, 4),
    (128, 16, 4, 4),
    (16, 128, 4, 4),
    (64, 16, 4, 4),
    (16, 64, 4, 4),
    (128, 8, 4, 4),
    (8, 128, 4, 4),
    (64, 8, 4, 4),
    (8, 64, 4, 4),
    (32, 16, 4, 4),
    (16, 32, 4, 4),
    (16, 16, 4, 4),
    (8, 16, 4, 4),
    (16, 8, 4, 4),
    (8, 8, 4, 4),
)
# Where there are fewer products than SMs: all of one on an SM of its own, or more threads and more tiles.
_FEW: Final[tuple[Tile, ...]] = ((128, 128, 8, 8), (16, 16, 2, 4), (8, 32, 2, 4), (8, 16, 2, 2))
_OPENCL: Final[tuple[Tile, ...]] = (
    (64, 64, 8, 16),
    (32, 64, 4, 16),
    (32, 32, 4, 8),
    (64, 16, 4, 8),
    (16, 64, 4, 8),
    (64, 8, 4, 4),
    (8, 64, 4, 4),
    (16, 32, 4, 4),
    (16, 16, 4, 8),
    (8, 16, 4, 8),
    (16, 8, 4, 4),
    (8, 8, 4, 4),
)
# A phase's bytes along k, and those of all phases for each two warps, of which an SM is to hold four or more.
PHASE_BYTES: Final = 128
POOL_BYTES: Final = 48 * 1024
# Threads of a block of small tiles, and registers for each; blocks an SM has before any takes more products.
SMALL_BLOCK: Final = 128
SMALL_REGISTERS: Final = 128
BUSY: Final = 2


def _default(problem: Problem, device: Device) -> Config:
    tiles = _CUDA if device.platform == "cuda" else _OPENCL
    if tiles is _CUDA and problem.batch < device.limits.sms:
        tiles = (*tiles, *(tile for tile in _FEW if _least(dict(zip(_TILE, tile, strict=True)), problem)))
    return lightest(SPACE, [_filled(tile, problem, device) for tile in tiles], problem, device)


def _filled(tile: Tile, problem: Problem, device: Device) -> dict[str, int]:
    """A tile with what goes well with it: as much of k as makes a phase, and products that make a block."""
    chosen = dict(zip(_TILE, tile, strict=True))
    needed = min(problem.k, PHASE_BYTES // problem.itemsize)
    chosen["BK"] = next(bk for bk in SPACE.parameters["BK"] if bk >= needed)
    chosen["PER"] = _products(tile, problem, device)
    chosen |= {"STAGES": 1, "HELD": 1}
    if device.capability >= COPIES_SINCE:
        pairs = max(1, threads(Config.of(chosen)) // (2 * WARP))
        room = POOL_BYTES * pairs // shared_bytes(Config.of(chosen), problem)
        chosen["STAGES"] = max(1, min(room, -(-problem.k // chosen["BK"]), SPACE.parameters["STAGES"][-1]))
    return chosen | {"HELD": _held(Config.of(chosen), problem, device)}


def _products(tile: Tile, problem: Problem, device: Device) -> int:
    bm, bn, tm, tn = tile
    if bm < problem.m or bn < problem.n:
        return 1
    several = min(SMALL_BLOCK * tm * tn // (bm * bn), problem.batch // (BUSY * max(device.limits.sms, 1)))
    return max(_below(several if device.platform == "cuda" else 1), WARP * tm * tn // (bm * bn))


def _held(config: Config, problem: Problem, device: Device) -> int:
    """Blocks an SM holds, where their registers alone would not leave it so many."""
    limits = device.limits
    if not limits.registers_per_sm or config["TM"] * config["TN"] * problem.itemsize >= LARGE_BYTES:
        return 1
    room = limits.registers_per_sm // (SMALL_REGISTERS * threads(config))
    held = (Config.of(dict(config) | {"HELD": count}) for count in reversed(SPACE.parameters["HELD"]) if count <= room)
    rules = (_registers_fit, _bound_binds, _held_fit)
    return next((one["HELD"] for one in held if all(rule(one, problem, device) for rule in rules)), 1)


def _below(count: int) -> int:
    """The largest power of two that is not above a count; of none, one."""
    return 1 << max(count.bit_length() - 1, 0)


BATCHED: Final = Kernel(
    name="batched",
    summary="Many small products: a block has the whole operands of several on their way at once.",
    file="batched.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=_plan,
    default=_default,
    pooled=True,
    suits=lambda problem: max(problem.m, problem.n, problem.k) <= LARGEST,
    shapes=f"m, n and k of at most {LARGEST}",
)
