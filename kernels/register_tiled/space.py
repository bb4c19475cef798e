"""The space of register_tiled: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kernels.device import Device
from kernels.launch import COUNTERS
from kernels.packing import packed_bytes, packs_mn_major
from kernels.problem import Problem
from kernels.register_tiled.plan import BUFFERED, register_limit, registers, shared_bytes, threads
from kernels.rules import VECTOR_BYTES, WARP, blocks, blocks_fit, bound_binds, shared_fits, threads_fit
from kernels.space import Config, Rule, Space
from kernels.split_k import PARTIALS_BYTES, grid_fits, k_tiles, k_tiles_per_split, order_matters, split_fits

# cp.async came with sm_80 (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").
COPIES_SINCE: Final = 80
# So many registers of sums leave enough for the rest from sm_90 on only: before, NVRTC spills a few.
LARGE: Final = 128
# A processor's 16 registers of 256 bits hold so many float32; PoCL spills what is more, and takes long over it.
PROCESSOR_SUMS: Final = 128
HOPPER: Final = 90
OLDER: Final = 16  # that NVRTC loses before sm_90
SPLITS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 18, 22, 27, 33, 44, 66, 132, 264)
# Those that are tried only where their blocks are at most so many for each SM, which one more or less fills unevenly.
BETWEEN: Final = frozenset({5, 7, 10, 13, 18, 27})
WAVES_BETWEEN: Final = 2
_FEWER: Final = dict(zip(SPLITS, (0, *SPLITS), strict=False))
FEWEST_K_TILES: Final = 2
# Steps of k between two barriers that a team takes: fewer do not pay for the wait, more take memory from stages.
SLICE_STEPS: Final = (8, 32)
# The same on a processor, where a barrier ends one loop over all threads and begins another: waits cost more.
PROCESSOR_STEPS: Final = (8, 64)
# Threads of an SM that have its schedulers busy, and blocks for each SM that leave the last wave a small part.
BUSY_THREADS: Final = 512
WAVES: Final = 4
# A launch of fewer blocks than a quarter of the SMs is not tried where k can be split.
IDLE: Final = 4
# How much of the products' own time copying may take: it saves crosswise copies, or copies of 4 bytes as well.
TIDY_SHARE: Final = 0.1
RAGGED_SHARE: Final = 0.5
LAUNCH: Final = 2e-6  # seconds
COPY_BYTES: Final = 2**30


def _warps_tile(config: Config, _: Problem, __: Device) -> bool:
    bm, bn, tm, tn, wn = (config[name] for name in ("BM", "BN", "TM", "TN", "WN"))
    wm = WARP * tm * tn // wn
    return wn % tn == 0 and wm % tm == 0 and wm > 0 and bn % wn == 0 and bm % wm == 0


def _warp_is_square(config: Config, _: Problem, device: Device) -> bool:
    wn, area = config["WN"], WARP * config["TM"] * config["TN"]
    return device.platform != "cuda" or area <= 2 * wn * wn <= 4 * area


def _warp_matters(config: Config, _: Problem, device: Device) -> bool:
    return device.platform == "cuda" or config["WN"] == 4 * config["TN"]


def _sums_fit_processor(config: Config, _: Problem, device: Device) -> bool:
    return device.platform == "cuda" or config["TM"] * config["TN"] <= PROCESSOR_SUMS


def _registers_fit(config: Config, problem: Problem, device: Device) -> bool:
    lost = OLDER * (device.capability < HOPPER)
    return not device.limits.registers_per_sm or registers(config, problem) + lost <= register_limit(config, device)


def _sums_stay(config: Config, problem: Problem, device: Device) -> bool:
    old = device.platform == "cuda" and device.capability < HOPPER
    return not old or config["TM"] * config["TN"] * problem.itemsize // 4 < LARGE


def _loads_divide(config: Config, problem: Problem, _: Device) -> bool:
    turn = threads(config) * VECTOR_BYTES // problem.itemsize
    return config["BM"] * config["BK"] % turn == 0 and config["BN"] * config["BK"] % turn == 0


def _stages(config: Config, _: Problem, device: Device) -> bool:
    return config["STAGES"] <= BUFFERED or device.capability >= COPIES_SINCE


def _copies_asynchronous(config: Config, _: Problem, device: Device) -> bool:
    return config["STAGES"] > BUFFERED or device.capability < COPIES_SINCE


def _slice_steps(config: Config, _: Problem, device: Device) -> bool:
    least, most = SLICE_STEPS if device.platform == "cuda" else PROCESSOR_STEPS
    return least * config["SLICE_K"] <= config["BK"] <= most * config["SLICE_K"]


def _slices_needed(config: Config, problem: Problem, device: Device) -> bool:
    at_once = -(-blocks(config, problem) * config["SPLIT_K"] // device.limits.sms)
    return config["SLICE_K"] == 1 or threads(config) * at_once <= BUSY_THREADS


def _splits_differ(config: Config, problem: Problem, _: Device) -> bool:
    return _is_shorter(k_tiles(config, problem), config["SPLIT_K"])


def _is_shorter(steps: int, split: int) -> bool:
    """Whether splits are shorter than with the next smaller SPLIT_K."""
    fewer = _FEWER[split]
    return not fewer or -(-steps // split) < -(-steps // fewer)


def _splits_long(config: Config, problem: Problem, _: Device) -> bool:
    return config["SPLIT_K"] == 1 or k_tiles_per_split(config, problem) >= FEWEST_K_TILES


def _split_fits(config: Config, problem: Problem, _: Device) -> bool:
    return split_fits(config, problem)


def _splits_needed(config: Config, problem: Problem, device: Device) -> bool:
    split = config["SPLIT_K"]
    waves = WAVES_BETWEEN if split in BETWEEN else WAVES
    return split == 1 or blocks(config, problem) * split <= waves * device.limits.sms


def _sms_used(config: Config, problem: Problem, device: Device) -> bool:
    tiles, sms = blocks(config, problem), device.limits.sms
    if IDLE * tiles * config["SPLIT_K"] >= sms:
        return True
    size = config["BM"] * config["BN"] * problem.itemsize
    return config["SPLIT_K"] == _most_splits(k_tiles(config, problem), tiles, size, sms)


@cache
def _most_splits(steps: int, tiles: int, tile_bytes: int, sms: int) -> int:
    """The largest SPLIT_K that the other rules allow."""

    def allowed(split: int) -> bool:
        per_split = -(-steps // split)
        fits = tiles * split * tile_bytes <= PARTIALS_BYTES and tiles * (split + 1) <= COUNTERS
        return per_split >= FEWEST_K_TILES and _is_shorter(steps, split) and tiles * split <= WAVES * sms and fits

    return max((split for split in SPLITS if allowed(split)), default=1)


def _packing_helps(config: Config, problem: Problem, _: Device) -> bool:
    return not config["PACK_MN"] or any(packs_mn_major(problem))


def _packing_fits(config: Config, problem: Problem, _: Device) -> bool:
    return not config["PACK_MN"] or packed_bytes(problem) <= COPY_BYTES


def _packing_pays(config: Config, problem: Problem, device: Device) -> bool:
    if not config["PACK_MN"]:
        return True
    limits = device.limits
    peak = limits.peak64 if problem.dtype == "float64" else limits.peak
    copying = LAUNCH + 2 * packed_bytes(problem) / limits.bandwidth
    return copying <= (RAGGED_SHARE if _is_ragged(problem) else TIDY_SHARE) * problem.flops / peak


def _transposing_costs(config: Config, problem: Problem, _: Device) -> bool:
    return not config["PACK_MN"] or config["STAGES"] > BUFFERED or _is_ragged(problem)


def _is_ragged(problem: Problem) -> bool:
    """Whether A's or B's rows are not whole 16 bytes."""
    wide = VECTOR_BYTES // problem.itemsize
    return problem.a_shape[1] % wide + problem.b_shape[1] % wide > 0


_TEAM: Final = ("BM", "BN", "TM", "TN")
_TILE: Final = (*_TEAM, "SLICE_K")
_SPLIT: Final = ("BM", "BN", "BK", "SPLIT_K")
# Each rule with the parameters that it reads.
_RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "a tile that is no multiple of its warps' tiles": (_warps_tile, (*_TEAM, "WN")),
    "a WN other than 4 threads, where the device has no warps": (_warp_matters, ("TN", "WN")),
    "more accumulators a thread than a processor's registers hold": (_sums_fit_processor, ("TM", "TN")),
    "a warp's tile more than twice as long as wide": (_warp_is_square, ("TM", "TN", "WN")),
    "fewer threads a block than a warp has, or more than the device allows": (threads_fit(threads, WARP), _TILE),
    "a slice of the k tile that is too short, or too long": (_slice_steps, ("SLICE_K", "BK")),
    "loads of 16 bytes that do not divide evenly among the threads": (_loads_divide, (*_TILE, "BK")),
    "more than two stages, where copies are not asynchronous": (_stages, ("STAGES",)),
    "fewer than three stages, where copies are asynchronous": (_copies_asynchronous, ("STAGES",)),
    "more registers a thread than there are": (_registers_fit, (*_TILE, "BK", "STAGES", "MIN_BLOCKS")),
    "more accumulators a thread than stay in registers before sm_90": (_sums_stay, ("TM", "TN")),
    "MIN_BLOCKS that does not limit registers": (bound_binds(threads), (*_TILE, "MIN_BLOCKS")),
    "packing of operands that need none": (_packing_helps, ("PACK_MN",)),
    "packed operands of more than 1 GiB": (_packing_fits, ("PACK_MN",)),
    "packing that takes too long beside the product": (_packing_pays, ("PACK_MN",)),
    "packing against transposed copies of 4 bytes, where there are none": (_transposing_costs, ("STAGES", "PACK_MN")),
    "more shared memory a block than the device allows": (
        shared_fits(shared_bytes),
        ("BM", "BN", "SLICE_K", "BK", "STAGES", "PACK_MN"),
    ),
    "more blocks on an SM than its threads and shared memory allow": (
        blocks_fit(threads, shared_bytes),
        (*_TILE, "BK", "STAGES", "MIN_BLOCKS", "PACK_MN"),
    ),
    "grouped tiles, where all run at once": (order_matters, ("BM", "BN", "GROUP_M")),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
    "more splits of k, where there are blocks enough": (_splits_needed, ("BM", "BN", "SPLIT_K")),
    "splits of k no shorter than fewer of them": (_splits_differ, ("BK", "SPLIT_K")),
    "splits of k shorter than two k tiles": (_splits_long, ("BK", "SPLIT_K")),
    "more partial sums of split k than fit in the workspace": (_split_fits, _SPLIT),
    "SMs left idle that more splits of k would use": (_sms_used, _SPLIT),
    "sliced k, where there are threads enough": (_slices_needed, (*_TILE, "SPLIT_K")),
}
SPACE: Final = Space(
    parameters={
        "BM": (16, 32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "TM": (4, 8, 16),
        "TN": (4, 8, 16),
        "WN": (16, 32, 64, 128),
        "SLICE_K": (1, 2, 4),
        "PACK_MN": (0, 1),
        "BK": (8, 16, 32, 64),
        "STAGES": (1, 2, 3, 4),
        "MIN_BLOCKS": (1, 2, 4),
        "SPLIT_K": SPLITS,
        "GROUP_M": (1, 8, 16),
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
