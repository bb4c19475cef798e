"""The space of skinny: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.rules import blocks, blocks_fit, bound_binds, covering_tile, real_bytes, registers_fit, shared_fits
from kernels.skinny.plan import (
    SHORT_SIDES,
    WORKSPACE_BYTES,
    bytes_in_flight,
    coalesced_bytes,
    each_long,
    has_ring,
    k_in_flight,
    k_step,
    long_side,
    registers,
    shared_bytes,
    short_side,
    threads,
    vector,
    workspace,
)
from kernels.space import Config, Space
from kernels.split_k import grid_fits

LONG_SIDES: Final = (16, 32, 64, 128, 256, 512)
FEWEST, MOST = 64, 512
DEPTHS: Final = (128, 256, 512, 1024, 2048)
# Elements of a phase of the short operand: of fewer threads wait for each other too often, more take room.
K_TILE_LEAST: Final = 1024
K_TILE_MOST: Final = 8192
STAGES: Final = (2, 3, 4, 6, 8)
# What an SM has under way at least, so that memory answers all the time: 4.3 TB/s x 700 ns over 132 of them are 23 KB.
BYTES_IN_FLIGHT: Final = 32 * 1024
# Of a row or column of the long operand neighbouring threads read at least so much at once: two sectors, or one of
# elements of 16 bits.
COALESCED_BYTES: Final = 64


def _tile_lies(config: Config, problem: Problem, _: Device) -> bool:
    flat = problem.m <= problem.n
    along, across = (config["BM"], config["BN"]) if flat else (config["BN"], config["BM"])
    return along == covering_tile(min(problem.m, problem.n), SHORT_SIDES) and across in LONG_SIDES and across > along


def _tile_is_filled(config: Config, problem: Problem, _: Device) -> bool:
    long, smallest = long_side(config), next(each for each in LONG_SIDES if each > short_side(config))
    return long == smallest or long < 2 * max(problem.m, problem.n)


def _thread_tile(config: Config, problem: Problem, _: Device) -> bool:
    flat, each = config["BM"] < config["BN"], each_long(config)
    own = config["TM"] if flat else config["TN"]
    return own == short_side(config) and each in {vector(problem), 4, 8} and each <= long_side(config)


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    count = threads(config)
    return FEWEST <= count <= min(MOST, device.limits.threads) and count & (count - 1) == 0


def _reads_coalesced(config: Config, problem: Problem, _: Device) -> bool:
    return coalesced_bytes(config, problem) * real_bytes(problem) >= COALESCED_BYTES * problem.itemsize


def _k_tile_fits(config: Config, problem: Problem, _: Device) -> bool:
    depth, short = config["BK"], short_side(config)
    least = max(k_in_flight(config, problem), DEPTHS[0], K_TILE_LEAST // short)
    fills = depth < 2 * problem.k or depth < 2 * least
    return fills and least <= depth <= K_TILE_MOST // short and depth % k_step(config, problem) == 0


def _bytes_in_flight_suffice(config: Config, problem: Problem, device: Device) -> bool:
    if device.platform != "cuda" or not has_ring(problem):
        return config["STAGES"] == STAGES[0]
    return config["MIN_BLOCKS"] * bytes_in_flight(config, problem) >= BYTES_IN_FLIGHT


def _splits_have_k_steps(config: Config, problem: Problem, _: Device) -> bool:
    return config["SPLIT_K"] == 1 or config["SPLIT_K"] * k_in_flight(config, problem) <= problem.k


def _splits_run_at_once(config: Config, problem: Problem, device: Device) -> bool:
    most = 2 * device.limits.sms * config["MIN_BLOCKS"]
    return config["SPLIT_K"] == 1 or blocks(config, problem) * config["SPLIT_K"] <= most


def _workspace_suffices(config: Config, problem: Problem, _: Device) -> bool:
    counters, left = workspace(config, problem)
    return config["SPLIT_K"] == 1 or (counters <= COUNTERS and left <= WORKSPACE_BYTES)


_TILE: Final = ("BM", "BN", "TM", "TN")
_RULES: Final = {
    "a tile whose short side is not along C's short side": (_tile_lies, ("BM", "BN")),
    "a tile at least twice as long as C, where there are shorter ones": (_tile_is_filled, ("BM", "BN")),
    "a thread tile without the tile's whole short side, or of parts of 16 bytes": (_thread_tile, _TILE),
    "fewer threads a block than 64, or more than 512 or the device allows": (_threads_fit, (*_TILE, "SLICE_K")),
    "coalesced reads of less than two sectors": (_reads_coalesced, (*_TILE, "SLICE_K")),
    "a k tile of fewer steps than stages, of too few or too many elements, or far past k": (
        _k_tile_fits,
        ("BM", "BN", "BK", "SLICE_K", "STAGES"),
    ),
    "too few bytes in flight, or more than two stages where copies are not asynchronous": (
        _bytes_in_flight_suffice,
        (*_TILE, "SLICE_K", "STAGES", "MIN_BLOCKS"),
    ),
    "more shared memory a block than the device allows": (
        shared_fits(shared_bytes),
        (*_TILE, "BK", "SLICE_K", "STAGES"),
    ),
    "more registers a thread than there are": (registers_fit(registers, threads), (*_TILE, "SLICE_K", "MIN_BLOCKS")),
    "MIN_BLOCKS that does not limit registers": (bound_binds(threads), (*_TILE, "SLICE_K", "MIN_BLOCKS")),
    "more blocks on an SM than its threads and shared memory allow": (
        blocks_fit(threads, shared_bytes),
        (*_TILE, "BK", "SLICE_K", "STAGES", "MIN_BLOCKS"),
    ),
    "more splits of k than it has k steps": (_splits_have_k_steps, ("SLICE_K", "STAGES", "SPLIT_K")),
    "more blocks by split k than two waves": (_splits_run_at_once, ("BM", "BN", "MIN_BLOCKS", "SPLIT_K")),
    "more partial sums of split k than fit in the workspace": (
        _workspace_suffices,
        (*_TILE, "SLICE_K", "STAGES", "SPLIT_K"),
    ),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
}
_SIDES: Final = tuple(sorted({*SHORT_SIDES, *LONG_SIDES}))
SPACE: Final = Space(
    parameters={
        "BM": _SIDES,
        "BN": _SIDES,
        "TM": SHORT_SIDES,
        "TN": SHORT_SIDES,
        "SLICE_K": (2, 4, 8, 16, 32, 64, 128),
        "BK": DEPTHS,
        "STAGES": STAGES,
        "MIN_BLOCKS": (1, 2, 3, 4),
        "SPLIT_K": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128),
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
