"""The space of skinny: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.rules import blocks, blocks_fit, bound_binds, registers_fit, shared_fits
from kernels.skinny.plan import (
    SCRATCH_BYTES,
    SHORTEST,
    covering,
    each_long,
    long_side,
    registers,
    scratch,
    shared_bytes,
    short_side,
    step,
    threads,
    together,
    turn,
    under_way,
    wide,
)
from kernels.space import Config, Space
from kernels.split_k import grid_fits

LONGEST: Final = (16, 32, 64, 128, 256, 512)
FEWEST, MOST = 64, 512
PHASES: Final = (128, 256, 512, 1024, 2048)
# Elements of a phase of the short operand: of fewer threads wait for each other too often, more take room.
PHASE_LEAST: Final = 1024
PHASE_MOST: Final = 8192
RINGS: Final = (2, 3, 4, 6, 8)
# What an SM has under way at least, so that memory answers all the time: 4.3 TB/s x 700 ns over 132 of them are 23 KB.
UNDER_WAY_BYTES: Final = 32 * 1024
# Of a row or column of the long operand neighbouring threads read at least so much at once: two sectors.
TOGETHER_BYTES: Final = 64


def _tile_lies(config: Config, problem: Problem, _: Device) -> bool:
    flat = problem.m <= problem.n
    along, across = (config["BM"], config["BN"]) if flat else (config["BN"], config["BM"])
    return along == covering(min(problem.m, problem.n)) and across in LONGEST and across > along


def _tile_is_filled(config: Config, problem: Problem, _: Device) -> bool:
    long, smallest = long_side(config), next(each for each in LONGEST if each > short_side(config))
    return long == smallest or long < 2 * max(problem.m, problem.n)


def _thread_tile(config: Config, problem: Problem, _: Device) -> bool:
    flat, each = config["BM"] < config["BN"], each_long(config)
    own = config["TM"] if flat else config["TN"]
    return own == short_side(config) and each in {wide(problem), 4, 8} and each <= long_side(config)


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    count = threads(config)
    return FEWEST <= count <= min(MOST, device.limits.threads) and count & (count - 1) == 0


def _reads_together(config: Config, problem: Problem, _: Device) -> bool:
    return together(config, problem) >= TOGETHER_BYTES


def _turns_fill(config: Config, problem: Problem, _: Device) -> bool:
    depth, short = config["BK"], short_side(config)
    least = max(turn(config, problem), PHASES[0], PHASE_LEAST // short)
    fills = depth < 2 * problem.k or depth < 2 * least
    return fills and least <= depth <= PHASE_MOST // short and depth % step(config, problem) == 0


def _copied_meanwhile(config: Config, _: Problem, device: Device) -> bool:
    if device.platform != "cuda":
        return config["STAGES"] == RINGS[0]
    return config["MIN_BLOCKS"] * under_way(config) >= UNDER_WAY_BYTES


def _slices_have_turns(config: Config, problem: Problem, _: Device) -> bool:
    return config["SPLIT_K"] == 1 or config["SPLIT_K"] * turn(config, problem) <= problem.k


def _slices_run_at_once(config: Config, problem: Problem, device: Device) -> bool:
    most = 2 * device.limits.sms * config["MIN_BLOCKS"]
    return config["SPLIT_K"] == 1 or blocks(config, problem) * config["SPLIT_K"] <= most


def _scratch_suffices(config: Config, problem: Problem, _: Device) -> bool:
    counters, left = scratch(config, problem)
    return config["SPLIT_K"] == 1 or (counters <= COUNTERS and left <= SCRATCH_BYTES)


_TILE: Final = ("BM", "BN", "TM", "TN")
_RULES: Final = {
    "a tile that is not short and long as C is": (_tile_lies, ("BM", "BN")),
    "a tile twice as long as C, where there are shorter ones": (_tile_is_filled, ("BM", "BN")),
    "a thread without its tile's whole short side, or without whole packs": (_thread_tile, _TILE),
    "fewer threads a block than 64, or more than 512 or the device allows": (_threads_fit, (*_TILE, "SLICE_K")),
    "less than two sectors of a row that neighbours read at once": (_reads_together, (*_TILE, "SLICE_K")),
    "a phase of fewer steps than are under way, of too few or many elements, or far past k": (
        _turns_fill,
        ("BM", "BN", "BK", "SLICE_K", "STAGES"),
    ),
    "too little under way at once, or a ring where nothing is copied meanwhile": (
        _copied_meanwhile,
        (*_TILE, "SLICE_K", "STAGES", "MIN_BLOCKS"),
    ),
    "more shared memory a block than the device allows": (
        shared_fits(shared_bytes),
        (*_TILE, "BK", "SLICE_K", "STAGES"),
    ),
    "more registers a thread than there are": (registers_fit(registers, threads), (*_TILE, "SLICE_K", "MIN_BLOCKS")),
    "a bound on registers that binds nothing": (bound_binds(threads), (*_TILE, "SLICE_K", "MIN_BLOCKS")),
    "more blocks to hold at once than an SM has room for": (
        blocks_fit(threads, shared_bytes),
        (*_TILE, "BK", "SLICE_K", "STAGES", "MIN_BLOCKS"),
    ),
    "more slices of k than it has turns": (_slices_have_turns, ("SLICE_K", "STAGES", "SPLIT_K")),
    "more blocks of slices than run in two goes": (_slices_run_at_once, ("BM", "BN", "MIN_BLOCKS", "SPLIT_K")),
    "slices whose sums scratch does not hold": (_scratch_suffices, (*_TILE, "SLICE_K", "STAGES", "SPLIT_K")),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
}
_SIDES: Final = tuple(sorted({*SHORTEST, *LONGEST}))
SPACE: Final = Space(
    parameters={
        "BM": _SIDES,
        "BN": _SIDES,
        "TM": SHORTEST,
        "TN": SHORTEST,
        "SLICE_K": (2, 4, 8, 16, 32, 64, 128),
        "BK": PHASES,
        "STAGES": RINGS,
        "MIN_BLOCKS": (1, 2, 3, 4),
        "SPLIT_K": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128),
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
