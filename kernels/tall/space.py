"""The space of tall: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.rules import MAX_GRID, WARP, blocks_fit, registers_fit, shared_fits, threads_fit
from kernels.space import Config, Space
from kernels.tall.plan import (
    DEPTHS,
    TILES,
    blocks,
    depth,
    good_tiles_per_block,
    registers,
    shared_bytes,
    short_and_long,
    short_and_long_tile,
    threads,
    warp_long,
)

# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
LEAST: Final = 8
# An SM has four parts: fewer warps than that leave some without work.
PARTS: Final = 4


def _side(config: Config, problem: Problem, _: Device) -> bool:
    return config["KEEP_A"] == (problem.m < problem.n)


def _piece_fits(config: Config, problem: Problem, device: Device) -> bool:
    """A short side in pieces streams the large operand for each: two at most, or as many as let all of k be kept."""
    piece, wanted = short_and_long_tile(config)[0], short_and_long(problem)[0]
    few = wanted <= 2 * piece or depth(2 * piece, problem, device) < problem.k
    return piece <= LEAST or (piece < 2 * wanted and few)


def _warps_divide(config: Config, _: Problem, __: Device) -> bool:
    covered = warp_long(config)
    return covered > 0 and short_and_long_tile(config)[1] % covered == 0


def _whole_sectors(config: Config, _: Problem, __: Device) -> bool:
    """A row of C's tile that is the warp's has 32 bytes or more."""
    return not config["KEEP_A"] or warp_long(config) // config["TN"] > 1


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return blocks(config, problem, config["TILES"]) <= MAX_GRID


def _tiles_per_block(config: Config, problem: Problem, device: Device) -> bool:
    return config["TILES"] in good_tiles_per_block(config, problem, device)


def _depth(config: Config, problem: Problem, device: Device) -> bool:
    return config["DEPTH"] == depth(short_and_long_tile(config)[0], problem, device)


def _k_tile_fits(config: Config, _: Problem, __: Device) -> bool:
    return config["BK"] <= config["DEPTH"]


def _stages(config: Config, _: Problem, device: Device) -> bool:
    return (config["STAGES"] > 1) == (device.capability >= COPIES_SINCE)


def _parts_work(config: Config, _: Problem, device: Device) -> bool:
    busy = device.platform != "cuda" or config["MIN_BLOCKS"] * threads(config) >= PARTS * WARP
    return busy and (device.platform == "cuda" or config["MIN_BLOCKS"] == 1)


_TILE: Final = ("KEEP_A", "BM", "BN", "TM", "TN")
_SIZES: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
SPACE: Final = Space(
    parameters={
        "KEEP_A": (0, 1),
        "BM": _SIZES,
        "BN": _SIZES,
        "TM": (4, 8, 16),
        "TN": (4, 8, 16),
        "MIN_BLOCKS": (1, 2, 3, 4),
        "TILES": TILES,
        "DEPTH": DEPTHS,
        "BK": (16, 32, 64),
        "STAGES": (1, 2, 3, 4),
    },
    rules={
        "the large operand kept and the small one streamed": _side,
        "a tile at least twice as long as the short side, or that covers too little of it": _piece_fits,
        "fewer threads a block than a warp has, or more than the device allows": threads_fit(threads, WARP),
        "a tile that is no multiple of its warps' tiles": _warps_divide,
        "stores of less than a sector": _whole_sectors,
        "fewer warps an SM than it has partitions, or MIN_BLOCKS where there are no SMs": _parts_work,
        "more than 2^31 - 1 blocks": _grid_fits,
        "TILES that leave SMs idle or load the kept operand too often": _tiles_per_block,
        "a DEPTH other than the least that holds all of k, or the most that fits": _depth,
        "BK larger than DEPTH": _k_tile_fits,
        "one stage where copies are asynchronous, or more where they are not": _stages,
        "more shared memory a block than the device allows": shared_fits(shared_bytes),
        "more registers a thread than there are": registers_fit(registers, threads),
        "more blocks on an SM than its threads and shared memory allow": blocks_fit(threads, shared_bytes),
    },
    reads={
        "the large operand kept and the small one streamed": ("KEEP_A",),
        "a tile at least twice as long as the short side, or that covers too little of it": ("KEEP_A", "BM", "BN"),
        "fewer threads a block than a warp has, or more than the device allows": _TILE,
        "a tile that is no multiple of its warps' tiles": _TILE,
        "stores of less than a sector": _TILE,
        "fewer warps an SM than it has partitions, or MIN_BLOCKS where there are no SMs": (*_TILE, "MIN_BLOCKS"),
        "more than 2^31 - 1 blocks": (*_TILE, "TILES"),
        "TILES that leave SMs idle or load the kept operand too often": (*_TILE, "MIN_BLOCKS", "TILES"),
        "a DEPTH other than the least that holds all of k, or the most that fits": ("KEEP_A", "BM", "BN", "DEPTH"),
        "BK larger than DEPTH": ("DEPTH", "BK"),
        "one stage where copies are asynchronous, or more where they are not": ("STAGES",),
        "more shared memory a block than the device allows": (*_TILE, "DEPTH", "BK", "STAGES"),
        "more registers a thread than there are": (*_TILE, "MIN_BLOCKS", "STAGES"),
        "more blocks on an SM than its threads and shared memory allow": (
            *_TILE,
            "MIN_BLOCKS",
            "DEPTH",
            "BK",
            "STAGES",
        ),
    },
)
