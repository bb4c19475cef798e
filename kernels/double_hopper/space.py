"""The space of double_hopper: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.device import Device
from kernels.double_hopper.plan import consumers, register_limit, registers, shared_bytes, threads, tiles
from kernels.double_tensor.space import SPLITS
from kernels.packing import ragged
from kernels.problem import Problem, larger
from kernels.rules import WARP, blocks_fit, shared_fits, warps_divide
from kernels.space import Config, Rule, Space
from kernels.split_k import grid_fits, order_matters, split_fits, splits_even, splits_needed

ARCHITECTURES: Final = ("sm_90",)
# SMs of Hopper devices, as their data sheets give them.
BLOCKS: Final = (0, 78, 114, 132)
WARPGROUP: Final = 128
# Of a box's rows (CUDA Driver API, cuTensorMapEncodeTiled).
MOST_ROWS: Final = 256
# Of k in shared memory: less leaves too little on its way, more is not waited for.
LEAST_DEEP, MOST_DEEP = 64, 160
# Threads of an SM that keep its four parts' tensor cores busy while some wait, with MIN_BLOCKS blocks.
BUSY_THREADS: Final = 128
MOST_THREADS: Final = 512
# What ptxas spills a few registers of, though not of all others that take as many: WM, WN, BK, MMA_K, AHEAD, threads
# that multiply and MIN_BLOCKS, in clusters and alone; and what it does in clusters.
SPILLED: Final = (
    (32, 32, 16, 8, 1, 384, 1),
    (32, 32, 32, 8, 1, 384, 1),
    (64, 32, 32, 16, 0, 128, 2),
    (32, 64, 32, 16, 0, 128, 2),
    (16, 64, 32, 8, 0, 128, 3),
)
SPILLED_IN_CLUSTERS: Final = (*SPILLED, (32, 32, 16, 16, 0, 384, 1), (32, 32, 16, 8, 0, 384, 1))
# Elements of a large tile, and tiles for each SM with which small ones are not tried.
LARGE: Final = 64 * 128
WAVES: Final = 8
# Coordinates in tensors have 31 bits.
MOST: Final = 2**31 - 1


def _has_tma(_: Config, __: Problem, device: Device) -> bool:
    return device.platform == "cuda" and device.architecture in ARCHITECTURES


def _rows_whole(_: Config, problem: Problem, __: Device) -> bool:
    return not ragged(problem)


def _warpgroups_whole(config: Config, _: Problem, __: Device) -> bool:
    return consumers(config) % WARPGROUP == 0


def _warps_share(config: Config, _: Problem, __: Device) -> bool:
    return min(config["WM"], config["WN"]) >= WARP or consumers(config) == WARPGROUP


def _threads_fit(config: Config, _: Problem, device: Device) -> bool:
    most = min(device.limits.threads, device.limits.threads_per_sm // config["MIN_BLOCKS"])
    return BUSY_THREADS <= consumers(config) * config["MIN_BLOCKS"] <= MOST_THREADS and threads(config) <= most


def _registers_fit(config: Config, _: Problem, device: Device) -> bool:
    names = ("WM", "WN", "BK", "MMA_K", "AHEAD")
    tile = (*(config[name] for name in names), consumers(config), config["MIN_BLOCKS"])
    spilled = SPILLED_IN_CLUSTERS if config["CLUSTER"] > 1 else SPILLED
    return registers(config) <= register_limit(config, device) and tile not in spilled


def _stages_pay(config: Config, _: Problem, __: Device) -> bool:
    return LEAST_DEEP <= config["STAGES"] * config["BK"] <= MOST_DEEP


def _large_enough(config: Config, problem: Problem, device: Device) -> bool:
    area = config["BM"] * config["BN"]
    whole = config["BM"] >= problem.m or config["BN"] >= problem.n or problem.batch > 1
    return whole or area >= LARGE or problem.m * problem.n < WAVES * area * device.limits.sms


def _clusters_pay(config: Config, problem: Problem, _: Device) -> bool:
    return config["CLUSTER"] == 1 or (config["MIN_BLOCKS"] == 1 and problem.m > config["BM"])


def _as_many_blocks(config: Config, problem: Problem, device: Device) -> bool:
    size, sms, cluster = config["BLOCKS"], device.limits.sms, config["CLUSTER"]
    many = tiles(config, problem) * cluster > sms * config["MIN_BLOCKS"]
    return size == 0 or (size == sms and size % cluster == 0 and many)


def _few_split(config: Config, problem: Problem, _: Device) -> bool:
    alone = config["CLUSTER"] == 1 and config["BLOCKS"] == 0 and config["WM"] * config["WN"] <= WARP * WARP
    return config["SPLIT_K"] == 1 or (alone and split_fits(config, problem))


def _counted(_: Config, problem: Problem, __: Device) -> bool:
    return larger(problem.m, problem.n, problem.k, problem.batch) <= MOST - MOST_ROWS


_WARPS: Final = ("BM", "BN", "WM", "WN")
# Each rule with the parameters that it reads.
_RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "no TMA unit beside tensor cores that multiply float64": (_has_tma, ()),
    "operands whose rows are no multiples of 16 bytes, which TMA does not load": (_rows_whole, ()),
    "more elements along a side than 31 bits count": (_counted, ()),
    "a tile that is no multiple of its warps' tiles": (warps_divide, _WARPS),
    "warps that are no whole warpgroups, which registers are moved between": (_warpgroups_whole, _WARPS),
    "small warps' tiles for more than four warps, which load more than they multiply": (_warps_share, _WARPS),
    "fewer threads than keep an SM busy, or more than it has registers for": (_threads_fit, (*_WARPS, "MIN_BLOCKS")),
    "more registers a thread than there are": (
        _registers_fit,
        (*_WARPS, "BK", "MMA_K", "AHEAD", "CLUSTER", "MIN_BLOCKS"),
    ),
    "stages of fewer than 64 of k, or more than 160": (_stages_pay, ("BK", "STAGES")),
    "more shared memory a block than the device allows": (shared_fits(shared_bytes), ("BM", "BN", "BK", "STAGES")),
    "more blocks on an SM than its threads and shared memory allow": (
        blocks_fit(threads, shared_bytes),
        (*_WARPS, "BK", "STAGES", "MIN_BLOCKS"),
    ),
    "small tiles, where large ones fill the SMs": (_large_enough, ("BM", "BN")),
    "clusters beside other blocks of an SM, or larger than C": (_clusters_pay, ("BM", "CLUSTER", "MIN_BLOCKS")),
    "grouped tiles, where all run at once": (order_matters, ("BM", "BN", "GROUP_M")),
    "more than 2^31 - 1 blocks": (grid_fits, ("BM", "BN", "SPLIT_K")),
    "more splits of k, where there are blocks enough": (splits_needed, ("BM", "BN", "MIN_BLOCKS", "SPLIT_K")),
    "splits of k that are empty, or shorter than four k tiles": (splits_even, ("BK", "SPLIT_K")),
    "splits of k for clusters, persistent blocks or large warps' tiles, or more than fit in the workspace": (
        _few_split,
        (*_WARPS, "BK", "CLUSTER", "BLOCKS", "SPLIT_K"),
    ),
    "persistent blocks other than one for each SM, or where none has a second tile": (
        _as_many_blocks,
        ("BM", "BN", "CLUSTER", "MIN_BLOCKS", "BLOCKS"),
    ),
}
SPACE: Final = Space(
    parameters={
        "BM": (32, 64, 96, 128, 256),
        "BN": (32, 64, 96, 128, 256),
        "WM": (16, 32, 64),
        "WN": (16, 32, 64),
        "BK": (16, 32),
        "MMA_K": (8, 16),
        "AHEAD": (0, 1),
        "STAGES": (2, 3, 4, 5, 6, 8),
        "CLUSTER": (1, 2),
        "MIN_BLOCKS": (1, 2, 3),
        "GROUP_M": (1, 8, 16),
        "BLOCKS": BLOCKS,
        "SPLIT_K": SPLITS,
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
