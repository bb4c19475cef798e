"""tall: where C is long one way and short the other the small operand stays in shared memory, the large one streams."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Plan
from kernels.problem import Problem
from kernels.space import Config, Space
from kernels.tall_plan import (
    DEPTHS,
    TILES,
    WARP,
    blocks,
    depth,
    good_runs,
    granted,
    registers,
    shared_bytes,
    short_and_long,
    sides,
    span,
    threads,
)

# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
# What counts as short, as little of k, and as long: so many times the others, and enough tiles for every SM.
SHORT: Final = 128
DEEPEST: Final = 512
TIMES_LONGER: Final = 16
LONG: Final = 2048
LEAST: Final = 8
# An SM has four parts: fewer warps than that leave some without work.
PARTS: Final = 4
# Defaults that leave the busiest SM so little more to do are equal: the order in which they are listed decides.
CLOSE: Final = 1.15


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return WARP <= threads(config) <= device.limits.threads


def _side(config: Config, problem: Problem, _: Device) -> bool:
    return config["KEEP_A"] == (problem.m < problem.n)


def _piece_fits(config: Config, problem: Problem, device: Device) -> bool:
    """A short side in pieces streams the large operand for each: two at most, or as many as let all of k be kept."""
    piece, wanted = sides(config)[0], short_and_long(problem)[0]
    few = wanted <= 2 * piece or depth(2 * piece, problem, device) < problem.k
    return piece <= LEAST or (piece < 2 * wanted and few)


def _warps_divide(config: Config, _: Problem, __: Device) -> bool:
    covered = span(config)
    return covered > 0 and sides(config)[1] % covered == 0


def _whole_sectors(config: Config, _: Problem, __: Device) -> bool:
    """A row of C's tile that is the warp's has 32 bytes or more."""
    return not config["KEEP_A"] or span(config) // config["TN"] > 1


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return blocks(config, problem, config["TILES"]) <= 2**31 - 1


def _runs(config: Config, problem: Problem, device: Device) -> bool:
    return config["TILES"] in good_runs(config, problem, device)


def _depth(config: Config, problem: Problem, device: Device) -> bool:
    return config["DEPTH"] == depth(sides(config)[0], problem, device)


def _phase_fits(config: Config, _: Problem, __: Device) -> bool:
    return config["BK"] <= config["DEPTH"]


def _stages(config: Config, _: Problem, device: Device) -> bool:
    return (config["STAGES"] > 1) == (device.capability >= COPIES_SINCE)


def _parts_work(config: Config, _: Problem, device: Device) -> bool:
    held = device.platform != "cuda" or config["HELD"] * threads(config) >= PARTS * WARP
    return held and (device.platform == "cuda" or config["HELD"] == 1)


def _registers_fit(config: Config, problem: Problem, device: Device) -> bool:
    return not device.limits.registers_per_sm or registers(config, problem) <= granted(config, device)


def _shared_fits(config: Config, problem: Problem, device: Device) -> bool:
    return shared_bytes(config, problem) <= device.limits.shared_bytes


def _held_fit(config: Config, problem: Problem, device: Device) -> bool:
    limits, held = device.limits, config["HELD"]
    shared = held * (shared_bytes(config, problem) + limits.shared_bytes_reserved)
    return held == 1 or (shared <= limits.shared_bytes_per_sm and held * threads(config) <= limits.threads_per_sm)


def _plan(config: Config, problem: Problem) -> Plan:
    tiles = config["TILES"]
    return Plan(blocks(config, problem, tiles), (threads(config), 1), shared_bytes(config, problem), numbers=(tiles,))


_TILE: Final = ("KEEP_A", "BM", "BN", "TM", "TN")
_SIZES: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
SPACE: Final = Space(
    parameters={
        "KEEP_A": (0, 1),
        "BM": _SIZES,
        "BN": _SIZES,
        "TM": (4, 8, 16),
        "TN": (4, 8, 16),
        "HELD": (1, 2, 3, 4),
        "TILES": TILES,
        "DEPTH": DEPTHS,
        "BK": (16, 32, 64),
        "STAGES": (1, 2, 3, 4),
    },
    rules={
        "the large operand kept and the small one streamed": _side,
        "a piece of the short side that is twice what is wanted, or less than is needed": _piece_fits,
        "fewer threads a block than a warp has, or more than the device allows": _threads_fit,
        "a tile that warps as wide as its short side do not divide": _warps_divide,
        "stores of less than a sector": _whole_sectors,
        "fewer warps an SM than it has parts, or blocks to hold where there are no SMs": _parts_work,
        "more than 2^31 - 1 blocks": _grid_fits,
        "runs of tiles that leave SMs without work or bring what is kept too often": _runs,
        "another depth than the least that holds all of k, or that there is room for": _depth,
        "a phase deeper than what is kept": _phase_fits,
        "one stage where others can be copied meanwhile, or more where they cannot": _stages,
        "more shared memory a block than the device allows": _shared_fits,
        "more registers a thread than there are": _registers_fit,
        "more blocks to hold at once than an SM has room for": _held_fit,
    },
    reads={
        "the large operand kept and the small one streamed": ("KEEP_A",),
        "a piece of the short side that is twice what is wanted, or less than is needed": ("KEEP_A", "BM", "BN"),
        "fewer threads a block than a warp has, or more than the device allows": _TILE,
        "a tile that warps as wide as its short side do not divide": _TILE,
        "stores of less than a sector": _TILE,
        "fewer warps an SM than it has parts, or blocks to hold where there are no SMs": (*_TILE, "HELD"),
        "more than 2^31 - 1 blocks": (*_TILE, "TILES"),
        "runs of tiles that leave SMs without work or bring what is kept too often": (*_TILE, "HELD", "TILES"),
        "another depth than the least that holds all of k, or that there is room for": ("KEEP_A", "BM", "BN", "DEPTH"),
        "a phase deeper than what is kept": ("DEPTH", "BK"),
        "one stage where others can be copied meanwhile, or more where they cannot": ("STAGES",),
        "more shared memory a block than the device allows": (*_TILE, "DEPTH", "BK", "STAGES"),
        "more registers a thread than there are": (*_TILE, "HELD", "STAGES"),
        "more blocks to hold at once than an SM has room for": (*_TILE, "HELD", "DEPTH", "BK", "STAGES"),
    },
)


# What defaults are chosen from: elements of the short side and of the long one that a thread has, warps, HELD, BK and
# STAGES. Wide pieces are near the peak of arithmetic and want large thread tiles, narrow ones want bytes under way; few
# tiles want small ones, so that every SM has some.
_FLOATS: Final = (
    (8, 8, 8, 1, 16, 4),
    (8, 8, 8, 1, 32, 3),
    (8, 8, 8, 1, 32, 2),
    (8, 8, 4, 1, 32, 3),
    (8, 4, 4, 1, 16, 3),
    (8, 4, 4, 1, 16, 2),
)
_DOUBLES: Final = ((8, 4, 8, 1, 32, 2), (8, 4, 8, 1, 16, 2), (8, 4, 4, 1, 16, 2))
_NARROW: Final = (
    (4, 4, 8, 2, 32, 3),
    (4, 4, 8, 2, 32, 2),
    (4, 4, 8, 2, 16, 2),
    (4, 4, 4, 1, 16, 3),
    (4, 4, 4, 1, 16, 2),
)
_UNCOPIED: Final = ((8, 4, 4, 2, 16, 1), (8, 4, 4, 1, 16, 1), (4, 4, 4, 1, 16, 1))
_OPENCL: Final = (
    (16, 8, 1, 1, 32, 1),
    (16, 4, 1, 1, 16, 1),
    (8, 8, 1, 1, 32, 1),
    (8, 4, 1, 1, 16, 1),
    (4, 4, 1, 1, 16, 1),
)
_NARROWER: Final = 32


def _rows(problem: Problem, device: Device) -> tuple[tuple[int, ...], ...]:
    if device.platform != "cuda":
        return _OPENCL
    if device.capability < COPIES_SINCE:
        return _UNCOPIED
    wide = _FLOATS if problem.dtype == "float32" else _DOUBLES
    return _NARROW if short_and_long(problem)[0] <= _NARROWER else (*wide, *_NARROW)


def _default(problem: Problem, device: Device) -> Config:
    whole = next((each for each in _SIZES if each >= short_and_long(problem)[0]), SHORT)
    pieces = [each for each in (whole, whole // 2, whole // 4) if each in _SIZES]
    # Best where all of k is kept; a short side in pieces costs less than k in pieces.
    pieces.sort(key=lambda piece: depth(piece, problem, device) < problem.k)
    found = [_config(piece, row, problem, device) for piece in pieces for row in _rows(problem, device)]
    legal = [each for each in found if SPACE.refusal(each, problem, device) is None]
    if not legal:
        return next(iter(SPACE.legal(problem, device)), next(iter(SPACE)))
    work = [_busiest(each, problem, device) for each in legal]
    return next(each for each, much in zip(legal, work, strict=True) if much <= CLOSE * min(work))


def _busiest(config: Config, problem: Problem, device: Device) -> int:
    """Elements of C, past its edges too, that the busiest SM has to add up."""
    each = -(-blocks(config, problem, config["TILES"]) // max(device.limits.sms, 1))
    return each * config["TILES"] * config["BM"] * config["BN"]


def _config(piece: int, row: tuple[int, ...], problem: Problem, device: Device) -> Config:
    """A row of defaults for a piece of the short side, with as few tiles a block as let all blocks run at once."""
    ts, tl, warps, held, bk, stages = row
    keep_a = problem.m < problem.n
    held_deep, long = depth(piece, problem, device), warps * WARP * ts * tl // piece
    bm, bn, tm, tn = (piece, long, ts, tl) if keep_a else (long, piece, tl, ts)
    tile = {"KEEP_A": int(keep_a), "BM": bm, "BN": bn, "TM": tm, "TN": tn, "HELD": held}
    rest = {"DEPTH": held_deep, "BK": min(bk, held_deep), "STAGES": stages}
    return Config.of(tile | {"TILES": good_runs(Config.of(tile), problem, device)[0]} | rest)


def _suits(problem: Problem) -> bool:
    """Long one way, short the other, and little of k: then the small operand is read once by each block."""
    short, long = short_and_long(problem)
    return short <= SHORT and problem.k <= DEEPEST and long >= max(LONG, TIMES_LONGER * max(short, problem.k))


TALL: Final = Kernel(
    name="tall",
    summary="The small operand stays in shared memory, the large one streams past it once.",
    file="tall.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=_plan,
    default=_default,
    pooled=True,
    arguments=("TILES",),
    suits=_suits,
    shapes=f"a C at most {SHORT} wide, {LONG} long and {TIMES_LONGER} times its width and k, with k up to {DEEPEST}",
)
