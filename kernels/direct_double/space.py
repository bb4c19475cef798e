"""The space of direct_double: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernels.device import Device
from kernels.direct_double.plan import grid, k_per_slice, passes, shared_bytes, slices, sums, teams, tiles
from kernels.direct_tensor.plan import threads
from kernels.problem import Problem
from kernels.rules import DECLARED_BYTES, MAX_GRID, registers_fit, threads_fit
from kernels.space import Config, Rule, Space
from kernels.split_k import CLUSTERS, CLUSTERS_SINCE

# Rows and columns of one instruction; its columns are as many as the least k of a pass.
STRIP: Final = 16
BAND: Final = 8
# Most of k past its end, beside that of the least pass.
MOST_PADDED: Final = 16
# Passes of a warp over its k.
MOST_PASSES: Final = 64
# Slices of which one in so many may have no k, of what they are whole multiples of.
EMPTY: Final = 4
# Tiles of a block whose k is sliced.
TEAMS: Final = (1, 2, 4)
# Tiles whose k is sliced, for each SM; and squares of 16 x 16 of a C whose k is long, on any device.
MOST_SLICED: Final = 8
MOST_TILES: Final = 1024
# Blocks of clusters for each SM: more are busy without them.
MOST_CLUSTERED: Final = 2
# Registers beside operands and sums, as NVRTC 12.9 allots them: addresses and sizes; and one for so many, as those of
# an instruction have to be side by side.
ADDRESSES: Final = 46
ASIDE: Final = 7
# 32-bit registers of an element, of a sum with what is about it, and 8 x 4 elements of which a thread has one.
WORDS: Final = 2
SUM_WORDS: Final = 3
FOUR: Final = 4


def elements(config: Config) -> int:
    """Elements of both operands that a thread has for a pass."""
    return (config["BM"] + config["BN"]) // BAND * config["BK"] // FOUR


def registers(config: Config) -> int:
    """The least registers of a thread that spills nothing."""
    words = WORDS * config["STAGES"] * elements(config) + SUM_WORDS * sums(config)
    return words + words // ASIDE + ADDRESSES


def _strips(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM" if problem.trans_a and problem.trans_b else "BN"] % STRIP == 0


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    k = k_per_slice(config, problem)
    padded = passes(config, problem) * config["BK"]
    return config["BK"] == BAND or padded < k + max(MOST_PADDED, k // 4)


def _few_passes(config: Config, problem: Problem, _: Device) -> bool:
    return passes(config, problem) <= MOST_PASSES


def _staged(config: Config, problem: Problem, _: Device) -> bool:
    return config["STAGES"] <= passes(config, problem)


def _sliced(config: Config, _: Problem, __: Device) -> bool:
    return config["SLICE_K"] == 1 or config["SLICE_K"] in {config["WARPS"] // each for each in TEAMS}


def _clustered(config: Config, problem: Problem, device: Device) -> bool:
    if config["CLUSTER_K"] == 1:
        return True
    few = grid(config, problem) <= MOST_CLUSTERED * max(device.limits.sms, 1)
    return few and device.capability >= CLUSTERS_SINCE


def _slices_have_k(config: Config, problem: Problem, _: Device) -> bool:
    parts = slices(config)
    return (parts - parts // EMPTY - 1) * k_per_slice(config, problem) < problem.k


def _grouped(config: Config, problem: Problem, _: Device) -> bool:
    group = config["GROUP_M"]
    return group == 1 or (
        group <= teams(config) and (group - 1) * config["BM"] < problem.m and config["BN"] < problem.n
    )


def _few_tiles(config: Config, problem: Problem, device: Device) -> bool:
    return slices(config) == 1 or tiles(config, problem) <= max(MOST_SLICED * device.limits.sms, MOST_TILES)


def _sums_fit(config: Config, problem: Problem, _: Device) -> bool:
    return shared_bytes(config, problem) <= DECLARED_BYTES


def _rows_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] <= STRIP or config["BM"] < 2 * problem.m


def _columns_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BN"] <= STRIP or config["BN"] < 2 * problem.n


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) <= MAX_GRID and grid(config, problem) <= MAX_GRID


def _each_has_registers(config: Config, _: Problem) -> int:
    return registers(config)


_SLICING: Final = ("WARPS", "SLICE_K", "CLUSTER_K", "GROUP_M")
# Each rule with the parameters that it reads.
_RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "half of an instruction's rows, which are C's columns but for two transposed operands": (_strips, ("BM", "BN")),
    "half of a tile's rows or more past the edge": (_rows_fill, ("BM",)),
    "half of a tile's columns or more past the edge": (_columns_fill, ("BN",)),
    "slices of k of other than one, two or four tiles a block": (_sliced, ("WARPS", "SLICE_K")),
    "grouped rows of tiles that a block or C has not": (_grouped, ("BM", "BN", "WARPS", "SLICE_K", "GROUP_M")),
    "more threads a block than the device allows": (threads_fit(threads), ("WARPS",)),
    "clusters before sm_90, or of more blocks than two for each SM": (
        _clustered,
        ("BM", "BN", *_SLICING),
    ),
    "more than 2^31 - 1 tiles": (_counted, ("BM", "BN", *_SLICING)),
    "slices of k, a quarter of which are empty": (_slices_have_k, ("SLICE_K", "CLUSTER_K")),
    "slices of k, where tiles fill the SMs several times": (_few_tiles, ("BM", "BN", *_SLICING)),
    "passes that end 16 past k or more, and a quarter of it": (_k_fills, ("BK", "SLICE_K", "CLUSTER_K")),
    "more passes than 64, where there are deeper ones": (_few_passes, ("BK", "SLICE_K", "CLUSTER_K")),
    "more stages than passes": (_staged, ("BK", "STAGES", "SLICE_K", "CLUSTER_K")),
    "sums of more slices than fit in shared memory": (_sums_fit, ("BM", "BN", *_SLICING)),
    "more registers a thread than there are": (
        registers_fit(_each_has_registers, threads),
        ("BM", "BN", "BK", "STAGES", "WARPS"),
    ),
}
SPACE: Final = Space(
    parameters={
        "BM": (8, 16, 32),
        "BN": (8, 16, 32),
        "BK": (8, 16, 24, 32, 40, 48, 64, 80, 96),
        "STAGES": (1, 2, 3, 4),
        "WARPS": (1, 2, 4, 8, 16),
        "SLICE_K": (1, 2, 4, 8, 16),
        "CLUSTER_K": CLUSTERS,
        "GROUP_M": (1, 2, 4),
    },
    rules={reason: rule for reason, (rule, _) in _RULES.items()},
    reads={reason: names for reason, (_, names) in _RULES.items()},
)
