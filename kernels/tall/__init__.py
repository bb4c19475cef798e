"""tall: where C is long one way and short the other the small operand stays in shared memory, the large one streams."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config
from kernels.tall.plan import blocks, depth, good_tiles_per_block, plan, short_and_long
from kernels.tall.space import _SIZES, COPIES_SINCE, SPACE

# What counts as short, as little of k, and as long: so many times the others, and enough tiles for every SM.
SHORT: Final = 128
DEEPEST: Final = 512
TIMES_LONGER: Final = 16
LONG: Final = 2048
# The least long side for which it is the untuned choice where there is pipelined.
LONGEST: Final = 2**15
PIPELINED_SINCE: Final = 80
# The least short side of those that a processor makes faster by this kernel than by tiled.
PROCESSOR_SHORT: Final = 64
# Defaults that leave the busiest SM so little more to do are equal: the order in which they are listed decides.
CLOSE: Final = 1.15
# What defaults are chosen from: elements of the short side and of the long one that a thread has, warps, MIN_BLOCKS, BK
# and STAGES. Wide pieces are near the peak of arithmetic and want large thread tiles, narrow ones want bytes under way;
# few tiles want small ones, so that every SM has some.
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
        return SPACE.first_legal(problem, device)
    work = [_busiest(each, problem, device) for each in legal]
    return next(each for each, much in zip(legal, work, strict=True) if much <= CLOSE * min(work))


def _busiest(config: Config, problem: Problem, device: Device) -> int:
    """Elements of C, past its edges too, that the busiest SM has to add up."""
    each = -(-blocks(config, problem, config["TILES"]) // max(device.limits.sms, 1))
    return each * config["TILES"] * config["BM"] * config["BN"]


def _config(piece: int, row: tuple[int, ...], problem: Problem, device: Device) -> Config:
    """A row of defaults for a piece of the short side, with as few tiles a block as let all blocks run at once."""
    ts, tl, warps, min_blocks, bk, stages = row
    keep_a = problem.m < problem.n
    held_deep, long = depth(piece, problem, device), warps * WARP * ts * tl // piece
    bm, bn, tm, tn = (piece, long, ts, tl) if keep_a else (long, piece, tl, ts)
    tile = {"KEEP_A": int(keep_a), "BM": bm, "BN": bn, "TM": tm, "TN": tn, "MIN_BLOCKS": min_blocks}
    rest = {"DEPTH": held_deep, "BK": min(bk, held_deep), "STAGES": stages}
    return Config.of(tile | {"TILES": good_tiles_per_block(Config.of(tile), problem, device)[0]} | rest)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether it is faster than tiled on a processor, where the short side is not that short, and than others on a GPU.

    Where pipelined is there, that and register_tiled take 0.4 to 0.9 of the time on an H200, but for the longest sides
    where products take little longer than reading: of 65536 x 128 x 512, where they take four times as long, 0.88.
    """
    if device.platform != "cuda":
        return min(problem.m, problem.n) >= PROCESSOR_SHORT
    rivalled = device.capability >= PIPELINED_SINCE and problem.dtype == "float32"
    return not rivalled or (max(problem.m, problem.n) >= LONGEST and _is_read(problem, device))


def _is_read(problem: Problem, device: Device) -> bool:
    """Whether products take at most twice as long as reading and writing."""
    return problem.flops * device.limits.bandwidth <= 2 * problem.bytes * device.limits.peak


TALL: Final = Kernel(
    name="tall",
    summary="The small operand stays in shared memory, the large one streams past it once.",
    file="tall/kernel.cu",
    space=SPACE,
    dtypes=("float32", "float64"),
    precisions=("strict",),
    platforms=("cuda", "opencl"),
    plan=plan,
    default=_default,
    dynamic_smem=True,
    arguments=("TILES",),
    preferred_untuned=_preferred_untuned,
    sizes=Sizes(short_most=SHORT, k_most=DEEPEST, long_least=LONG, long_times=TIMES_LONGER),
    shapes=f"a C at most {SHORT} wide, {LONG} long and {TIMES_LONGER} times its width and k, with k up to {DEEPEST}",
)
