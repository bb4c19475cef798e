"""The space of double_tensor: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from kernels.device import Device
from kernels.double_tensor.plan import registers, shared_bytes, threads
from kernels.launch import COUNTERS
from kernels.problem import Problem
from kernels.rules import WARP, blocks, blocks_fit, bound_binds, registers_fit, shared_fits, warps_divide
from kernels.space import Config, Rule, Space
from kernels.split_k import (
    CLUSTERS,
    PARTIALS_BYTES,
    WAVES,
    cluster_divides,
    cluster_exists,
    fan,
    grid_fits,
    is_even_split,
    k_tiles,
    order_matters,
    shared_once,
    split_fits,
    splits_even,
    splits_needed,
)
from kernels.stream_k import RULES as STREAMING
from kernels.stream_k import SMS

# Tensor cores that multiply float64 at twice the rate of FMAs. Other architectures with mma.sync for it, sm_86, sm_89
# and sm_120 among them, have a fraction of that (CUDA C++ Programming Guide, "Throughput of Native Arithmetic
# Instructions").
ARCHITECTURES: Final = ("sm_80", "sm_90")
# The one instruction before sm_90, which has deeper ones too (PTX ISA, "mma").
SHALLOW: Final = 4
SPLITS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 11, 14, 16, 22, 33, 44, 66, 132, 264)
# Threads of an SM that keep its four parts' tensor cores busy while some wait.
BUSY_THREADS: Final = 128
FEW_WARPS: Final = 4
# Of k in shared memory: less leaves too little on its way, more is not waited for.
LEAST_DEEP, MOST_DEEP = 48, 128
# Threads of an SM with stream-K, which are as many at its end as before.
STREAMED_THREADS: Final = 256
# Of k: a block is done with so much about when slices of it would have been added up.
NOT_SLICED: Final = 512


def _has_instruction(_: Config, __: Problem, device: Device) -> bool:
    return device.platform == "cuda" and device.architecture in ARCHITECTURES


def _deep_enough(config: Config, _: Problem, device: Device) -> bool:
    return config["MMA_K"] <= SHALLOW or device.architecture != "sm_80"


def _warps_share(config: Config, _: Problem, __: Device) -> bool:
    small = min(config["WM"], config["WN"]) < WARP
    return not small or config["BM"] // config["WM"] * (config["BN"] // config["WN"]) <= FEW_WARPS


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    return threads(config) * config["MIN_BLOCKS"] >= BUSY_THREADS and threads(config) <= device.limits.threads


def _copies_divide(config: Config, _: Problem, __: Device) -> bool:
    turn = 2 * threads(config)
    return config["BM"] * config["BK"] % turn == 0 and config["BN"] * config["BK"] % turn == 0


def _steps_alternate(config: Config, _: Problem, __: Device) -> bool:
    return not config["AHEAD"] or config["BK"] % (2 * config["MMA_K"]) == 0


def _stages_pay(config: Config, _: Problem, __: Device) -> bool:
    return LEAST_DEEP <= config["STAGES"] * config["BK"] <= MOST_DEEP


def _split_fits(config: Config, problem: Problem, _: Device) -> bool:
    return split_fits(config, problem)


def _streamed_busy(config: Config, _: Problem, __: Device) -> bool:
    return config["STREAM_K_SMS"] == 0 or threads(config) * config["MIN_BLOCKS"] >= STREAMED_THREADS


def _bound_binds(config: Config, problem: Problem, device: Device) -> bool:
    """With stream-K, MIN_BLOCKS is how many blocks an SM has, whatever registers these take."""
    return config["STREAM_K_SMS"] > 0 or bound_binds(threads)(config, problem, device)


def _sms_used(config: Config, problem: Problem, device: Device) -> bool:
    tiles, sms = blocks(config, problem), device.limits.sms
    if (
        config["STREAM_K_SMS"]
        or config["CLUSTER_K"] > 1
        or 2 * tiles * config["SPLIT_K"] > sms
        or (config["SPLIT_K"] == 1 and problem.k <= NOT_SLICED)
    ):
        return True
    tile_bytes = config["BM"] * config["BN"] * problem.itemsize
    return config["SPLIT_K"] == _most_splits(
        k_tiles(config, problem), tiles, tile_bytes, WAVES * config["MIN_BLOCKS"] * sms
    )


@cache
def _most_splits(steps: int, tiles: int, tile_bytes: int, most: int) -> int:
    """The largest SPLIT_K that the other rules allow."""

    def allowed(split: int) -> bool:
        fits = tiles * split * tile_bytes <= PARTIALS_BYTES and tiles * (-(-split // fan(split)) + 1) <= COUNTERS
        return is_even_split(steps, split) and tiles * split <= most and fits

    return max((split for split in SPLITS[1:] if allowed(split)), default=1)


_WARPS: Final = ("BM", "BN", "WM", "WN")
# Each rule with the parameters that it reads.
_RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "no tensor cores that multiply float64 at full rate": (_has_instruction, ()),
    "a tile that is no multiple of its warps' tiles": (warps_divide, _WARPS),
    "small warps' tiles for more than four warps, which load more than they multiply": (_warps_share, _WARPS),
    "copies of 16 bytes that do not divide evenly among the threads": (_copies_divide, (*_WARPS, "BK")),
    "an instruction with more than 4 of k before sm_90": (_deep_enough, ("MMA_K",)),
    "AHEAD with an odd number of mma steps in a k tile": (_steps_alternate, ("BK", "MMA_K", "AHEAD")),
    "fewer threads than keep an SM busy, or more than the device allows": (_threads_fit, (*_WARPS, "MIN_BLOCKS")),
    "more registers a thread than there are": (
        registers_fit(lambda config, _: registers(config), threads),
        (*_WARPS, "BK", "MMA_K", "AHEAD", "MIN_BLOCKS", "STREAM_K_SMS", "CLUSTER_K"),
    ),
    "MIN_BLOCKS that does not limit registers": (_bound_binds, (*_WARPS, "MIN_BLOCKS", "STREAM_K_SMS")),
    "stages of fewer than 48 of k, or more than 128": (_stages_pay, ("BK", "STAGES")),
    "more shared memory a block than the device allows": (
        shared_fits(shared_bytes),
        ("BM", "BN", "WM", "BK", "STAGES", "CLUSTER_K"),
    ),
    "more blocks on an SM than its threads and shared memory allow": (
        blocks_fit(threads, shared_bytes),
        (*_WARPS, "BK", "STAGES", "MIN_BLOCKS", "CLUSTER_K"),
    ),
    "grouped tiles, where all run at once": (order_matters, ("BM", "BN", "GROUP_M")),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
    "more splits of k, where there are blocks enough": (splits_needed, ("BM", "BN", "MIN_BLOCKS", "SPLIT_K")),
    "splits of k that are empty, or shorter than four k tiles": (splits_even, ("BK", "SPLIT_K")),
    "more partial sums of split k than fit in the workspace": (_split_fits, ("BM", "BN", "BK", "SPLIT_K")),
    "SMs left idle that more splits of k would use": (
        _sms_used,
        ("BM", "BN", "BK", "MIN_BLOCKS", "STREAM_K_SMS", "CLUSTER_K", "SPLIT_K"),
    ),
    "k shared out in clusters before sm_90, or where blocks fill the SMs": (
        cluster_exists,
        ("BM", "BN", "CLUSTER_K", "SPLIT_K"),
    ),
    "k shared out in clusters and in splits or by stream-K": (
        shared_once,
        ("STREAM_K_SMS", "CLUSTER_K", "SPLIT_K"),
    ),
    "k with too little for each block of a cluster": (cluster_divides, ("BK", "CLUSTER_K", "SPLIT_K")),
    **STREAMING,
    "stream-K with fewer than 256 threads an SM": (_streamed_busy, (*_WARPS, "MIN_BLOCKS", "STREAM_K_SMS")),
}
SPACE: Final = Space(
    parameters={
        "BM": (32, 64, 128, 256),
        "BN": (32, 64, 128, 256),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "BK": (16, 32),
        "MMA_K": (4, 8, 16),
        "AHEAD": (0, 1),
        "STAGES": (2, 3, 4, 5),
        "MIN_BLOCKS": (1, 2, 3, 4),
        "STREAM_K_SMS": (0, *SMS),
        "CLUSTER_K": CLUSTERS,
        "GROUP_M": (1, 8, 16),
        "SPLIT_K": SPLITS,
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
