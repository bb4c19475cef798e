"""register_tiled: tiles in shared memory, of which each thread adds up TM x TN elements of C in registers."""

from __future__ import annotations

import re
from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Plan
from kernels.model import lightest
from kernels.naive import blocks, grid_fits
from kernels.problem import Problem
from kernels.space import Config, Space

WARP: Final = 32
VECTOR_BYTES: Final = 16
# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
BUFFERED: Final = 2
# So many sums, of all blocks held, leave registers for the rest from sm_90 on only: before, NVRTC spills a few.
LARGE: Final = 128
HOPPER: Final = 90
# Registers beside sums, operands and what is under way, as NVRTC 12.9 allots them: addresses, sizes, counters; and
# what is lost between the aligned pairs that doubles live in.
ADDRESSES: Final = 40
GAPS: Final = 8


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["BM"] // config["TM"] * (config["BN"] // config["TN"])


def lines(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements from one k to the next of A's and of B's shared tile, as LINE of register_tiled.cu."""
    return config["BM"] + 4 * (not problem.trans_a), config["BN"] + 4 * problem.trans_b


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of all stages of both shared tiles with their padding."""
    return config["STAGES"] * config["BK"] * sum(lines(config, problem)) * problem.itemsize


def registers(config: Config, problem: Problem) -> int:
    """Registers that a thread needs at least if nothing is to be spilled."""
    tm, tn, words = config["TM"], config["TN"], problem.itemsize // 4
    held = (config["BM"] + config["BN"]) * config["BK"] // threads(config) if config["STAGES"] <= BUFFERED else 0
    return words * (tm * tn + tm + tn + held) + ADDRESSES + GAPS * (words - 1)


def granted(config: Config, device: Device) -> int:
    """Registers that the compiler may give a thread so that an SM holds HELD blocks; 0 where the device has none."""
    limits = device.limits
    each = limits.registers_per_sm // (_warps_threads(config) * config["HELD"]) // 8 * 8
    return min(each, limits.registers_per_thread)


def _warps_threads(config: Config) -> int:
    return -(-threads(config) // WARP) * WARP


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return WARP <= threads(config) <= device.limits.threads


def _warps_tile(config: Config, _: Problem, __: Device) -> bool:
    bm, bn, tm, tn, wn = (config[name] for name in ("BM", "BN", "TM", "TN", "WN"))
    wm = WARP * tm * tn // wn
    return wn % tn == 0 and wm % tm == 0 and wm > 0 and bn % wn == 0 and bm % wm == 0


def _warp_matters(config: Config, _: Problem, device: Device) -> bool:
    return device.platform == "cuda" or config["WN"] == 4 * config["TN"]


def _registers_fit(config: Config, problem: Problem, device: Device) -> bool:
    return not device.limits.registers_per_sm or registers(config, problem) <= granted(config, device)


def _bound_binds(config: Config, _: Problem, device: Device) -> bool:
    return config["HELD"] == 1 or 0 < granted(config, device) < device.limits.registers_per_thread


def _loads_divide(config: Config, problem: Problem, _: Device) -> bool:
    turn = threads(config) * VECTOR_BYTES // problem.itemsize
    return config["BM"] * config["BK"] % turn == 0 and config["BN"] * config["BK"] % turn == 0


def _capability(device: Device) -> int:
    """The number of a CUDA architecture, 90 of sm_90; 0 where there is none."""
    found = re.fullmatch(r"sm_(\d+)", device.architecture)
    return int(found.group(1)) if found and device.platform == "cuda" else 0


def _stages(config: Config, _: Problem, device: Device) -> bool:
    return config["STAGES"] <= BUFFERED or _capability(device) >= COPIES_SINCE


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes


def _held_fit(config: Config, problem: Problem, device: Device) -> bool:
    limits, held = device.limits, config["HELD"]
    shared = held * (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    return held == 1 or (shared <= limits.shared_bytes_per_sm and held * threads(config) <= limits.threads_per_sm)


def _plan(config: Config, problem: Problem) -> Plan:
    return Plan(blocks(config, problem), (threads(config), 1), shared_bytes(config, problem))


_TILE: Final = ("BM", "BN", "TM", "TN")
SPACE: Final = Space(
    parameters={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "TM": (4, 8, 16),
        "TN": (4, 8, 16),
        "WN": (16, 32, 64, 128),
        "BK": (8, 16, 32),
        "STAGES": (1, 2, 3, 4),
        "HELD": (1, 2, 4),
        "GROUP": (1, 8),
    },
    rules={
        "fewer threads a block than a warp has, or more than the device allows": _threads_fit,
        "more than 2^31 - 1 blocks": grid_fits,
        "a tile that 32 threads, each with its own, do not divide": _warps_tile,
        "another warp than 4 threads across, where the device has none": _warp_matters,
        "loads of 16 bytes that do not divide evenly among the threads": _loads_divide,
        "more than two stages, where nothing is copied asynchronously": _stages,
        "more shared memory a block than the device allows": _shared_fits,
        "more registers a thread than there are": _registers_fit,
        "a bound on registers that binds nothing": _bound_binds,
        "more blocks to hold at once than an SM has room for": _held_fit,
    },
    reads={
        "fewer threads a block than a warp has, or more than the device allows": _TILE,
        "more than 2^31 - 1 blocks": ("BM", "BN"),
        "a tile that 32 threads, each with its own, do not divide": (*_TILE, "WN"),
        "another warp than 4 threads across, where the device has none": ("TN", "WN"),
        "loads of 16 bytes that do not divide evenly among the threads": (*_TILE, "BK"),
        "more than two stages, where nothing is copied asynchronously": ("STAGES",),
        "more shared memory a block than the device allows": ("BM", "BN", "BK", "STAGES"),
        "more registers a thread than there are": (*_TILE, "BK", "STAGES", "HELD"),
        "a bound on registers that binds nothing": (*_TILE, "HELD"),
        "more blocks to hold at once than an SM has room for": (*_TILE, "BK", "STAGES", "HELD"),
    },
)


# What defaults are chosen from, largest first; the order of the values is the space's.
_CUDA: Final = (
    (256, 128, 16, 8, 64, 16, 3, 1, 8),
    (128, 256, 8, 16, 128, 16, 3, 1, 8),
    (128, 128, 8, 8, 64, 16, 3, 2, 8),
    (128, 128, 8, 8, 64, 8, 3, 1, 8),
    (128, 64, 8, 8, 32, 16, 3, 1, 8),
    (64, 128, 8, 8, 64, 16, 3, 1, 8),
)
# Doubles take two registers each: 8 x 8 of them leave too few on some architectures. Small tiles are the same for both.
_DOUBLES: Final = ((128, 64, 8, 4, 32, 16, 3, 1, 8), (64, 128, 4, 8, 64, 16, 3, 1, 8))
_SMALL: Final = (
    (64, 64, 4, 8, 32, 16, 3, 1, 8),
    (32, 128, 4, 8, 64, 16, 3, 1, 8),
    (64, 32, 4, 4, 16, 16, 3, 1, 8),
    (32, 64, 4, 4, 32, 16, 3, 1, 8),
    (32, 32, 4, 4, 16, 16, 3, 1, 8),
    (32, 32, 4, 4, 16, 8, 3, 1, 8),
)
_OPENCL: Final = (
    (64, 64, 8, 16, 64, 16, 1, 1, 1),
    (64, 64, 8, 16, 64, 8, 1, 1, 1),
    (32, 64, 4, 16, 64, 16, 1, 1, 1),
    (32, 32, 4, 8, 32, 16, 1, 1, 1),
    (32, 32, 4, 8, 32, 8, 1, 1, 1),
    (32, 32, 4, 4, 16, 8, 1, 1, 1),
)


def _default(problem: Problem, device: Device) -> Config:
    large = _CUDA if problem.dtype == "float32" else _DOUBLES
    tiles = (*large, *_SMALL) if device.platform == "cuda" else _OPENCL
    shapes = [dict(zip(SPACE.parameters, tile, strict=True)) for tile in tiles]
    if device.platform == "cuda" and _capability(device) < HOPPER:
        shapes = [shape for shape in shapes if shape["TM"] * shape["TN"] * shape["HELD"] < LARGE]
    if device.platform == "cuda" and _capability(device) < COPIES_SINCE:
        shapes = [shape | {"STAGES": BUFFERED} for shape in shapes]
    return lightest(SPACE, shapes, problem, device)


REGISTER_TILED: Final = Kernel(
    name="register_tiled",
    summary="Tiles in shared memory, of which each thread adds up TM x TN elements of C in registers.",
    file="register_tiled.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=_plan,
    default=_default,
    pooled=True,
)
