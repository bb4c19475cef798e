"""double_hopper: float64 products on tensor cores, by tiles that the TMA unit brings; sm_90 alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from kernels.arithmetic import DMMA
from kernels.device import Device
from kernels.double_hopper.cost_model import seconds
from kernels.double_hopper.plan import plan
from kernels.double_hopper.space import ARCHITECTURES, BLOCKS, SPACE
from kernels.double_tensor import DOUBLE_TENSOR
from kernels.double_tensor.cost_model import seconds as copied_seconds
from kernels.double_tensor.space import SPLITS
from kernels.kernel import Kernel, Sizes
from kernels.problem import Problem
from kernels.residuals import CANDIDATES, ranked
from kernels.rules import blocks
from kernels.space import Config

# As double_tensor's: C's short side that is skinny's, and the cube that is batched's.
SHORT: Final = 16
SMALL: Final = 32
# What defaults are chosen from, and seeds of a search: BM, BN, WM, WN, BK, MMA_K, AHEAD, STAGES, CLUSTER,
# MIN_BLOCKS.
_TILES: Final = (
    (128, 64, 32, 32, 16, 16, 0, 8, 1, 1),
    (128, 96, 32, 32, 16, 16, 0, 6, 1, 1),
    (128, 64, 32, 32, 16, 8, 1, 6, 1, 1),
    (64, 128, 32, 32, 16, 16, 1, 6, 1, 1),
    (128, 128, 64, 32, 16, 8, 0, 6, 1, 1),
    (64, 64, 32, 32, 16, 16, 1, 5, 1, 2),
    (64, 64, 32, 32, 16, 16, 1, 6, 1, 1),
    (32, 64, 16, 32, 16, 16, 1, 6, 1, 2),
    (64, 32, 32, 16, 16, 16, 1, 6, 1, 2),
    (32, 32, 16, 16, 32, 16, 1, 4, 1, 2),
    (64, 32, 16, 32, 16, 8, 1, 6, 1, 3),
    (32, 32, 16, 16, 16, 8, 0, 6, 1, 3),
    (64, 32, 32, 16, 16, 8, 1, 5, 1, 2),
)
_TILE_NAMES: Final = ("BM", "BN", "WM", "WN", "BK", "MMA_K", "AHEAD", "STAGES", "CLUSTER", "MIN_BLOCKS")
# How many of them a search begins with.
SEEDS: Final = 6
# Over tens of milliseconds power limits the clock: what makes a large product with the fewest joules, where neither
# operand is transposed and elsewhere, and the estimated seconds from which on it is the fastest.
_FRUGAL: Final = ((128, 128, 64, 32, 16, 16, 0, 6, 2, 1), (128, 128, 64, 32, 32, 16, 0, 3, 2, 1))
_LONG: Final = 0.03
# Of double_tensor's estimate: of 25 drawn shapes it takes 1.07 times that in the mean, this kernel 1.03 times its own.
_CLEARLY: Final = 1.1


def _default(problem: Problem, device: Device) -> Config:
    """The first of the fastest; the space's first config if the device allows none of those."""
    found = _fastest(problem, device)
    return found[0] if found else SPACE.first_legal(problem, device)


@lru_cache(1024)
def _fastest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """The first of the least estimates, no two of one tile, as corrected; before them the frugal one, if it is long."""
    least = sorted(
        (min(legal, key=lambda config: seconds(config, problem, device)) for legal in _legal(problem, device)),
        key=lambda config: seconds(config, problem, device),
    )[:CANDIDATES]
    found = ranked(DOUBLE_HOPPER, least, problem, device)[:SEEDS]
    frugal = _of_tile(_FRUGAL[problem.trans_a or problem.trans_b], problem, device)
    is_long = bool(found) and seconds(found[0], problem, device) > _LONG
    return (frugal, *found) if is_long and SPACE.refusal(frugal, problem, device) is None else found


def _legal(problem: Problem, device: Device) -> Iterator[list[Config]]:
    """Of each tile the legal configs, with k whole and in splits."""
    for tile in _TILES:
        whole = _of_tile(tile, problem, device)
        splits = (SPACE.config(dict(whole) | {"BLOCKS": 0, "SPLIT_K": split}) for split in SPLITS[1:])
        if legal := [each for each in (whole, *splits) if SPACE.refusal(each, problem, device) is None]:
            yield legal


def _of_tile(tile: tuple[int, ...], problem: Problem, device: Device) -> Config:
    """A tile's config, its blocks persistent where they have several tiles each."""
    shape, sms = dict(zip(_TILE_NAMES, tile, strict=True)), device.limits.sms
    tiles = blocks(shape, problem)
    stays = sms in BLOCKS and tiles > sms * shape["MIN_BLOCKS"]
    dealt = {"GROUP_M": 8 if tiles > 2 * sms else 1, "BLOCKS": sms if stays else 0, "SPLIT_K": 1}
    return SPACE.config(shape | dealt)


def _preferred_untuned(problem: Problem, device: Device) -> bool:
    """Whether double_tensor is not estimated to be clearly the faster one."""
    return untuned_seconds(problem, device) <= _CLEARLY * _copied_seconds(problem, device)


def untuned_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of the default."""
    return seconds(_default(problem, device), problem, device)


def _copied_seconds(problem: Problem, device: Device) -> float:
    return copied_seconds(DOUBLE_TENSOR.default(problem, device), problem, device)


def least_seconds(problem: Problem, device: Device) -> float:
    """Estimated seconds of double_tensor's default, or of this kernel's where it covers the problem and has less."""
    copied = _copied_seconds(problem, device)
    return min(copied, untuned_seconds(problem, device)) if DOUBLE_HOPPER.covers(problem, device) else copied


DOUBLE_HOPPER: Final = Kernel(
    name="double_hopper",
    summary="Tiles that the TMA unit brings into a ring and warps multiply in float64 on tensor cores.",
    file="double_hopper/kernel.cu",
    space=SPACE,
    dtypes=("float64",),
    precisions=("strict",),
    platforms=("cuda",),
    plan=plan,
    default=_default,
    seconds=seconds,
    seeds=_fastest,
    dynamic_smem=True,
    arguments=("GROUP_M", "BLOCKS", "SPLIT_K"),
    sizes=Sizes(short_over=SHORT, largest_over=SMALL, whole_rows=True),
    preferred_untuned=_preferred_untuned,
    shapes=(
        f"a C of more than {SHORT} both ways, where m, n or k is over {SMALL}, "
        "and operands whose rows are multiples of 16 bytes"
    ),
    architectures=ARCHITECTURES,
    instructions=DMMA,
)
