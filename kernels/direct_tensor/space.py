"""The space of direct_tensor: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.direct_tensor.plan import (
    BAND,
    REALIGN_C,
    grid,
    k_per_slice,
    pass_k,
    passes,
    slices,
    slices_bytes,
    threads,
    tiles,
)
from kernels.packing import HALF_BYTES, A, B, is_c_ragged, operands_to_realign
from kernels.problem import Problem
from kernels.rules import DECLARED_BYTES, MAX_GRID, WARP, threads_fit
from kernels.space import Config, Space
from kernels.split_k import CLUSTERS, CLUSTERS_SINCE

# Rows of one instruction, and the least of k that a tile has.
STRIP: Final = 16
# Columns of one instruction that a thread has, and bytes that it has at most side by side.
OWN: Final = 2
MOST_OWN_BYTES: Final = 16
# Most of k past its end, beside that of an instruction's 16.
MOST_PADDED: Final = 32
# Passes of a slice over its k.
MOST_PASSES: Final = 16
# Slices of which one in so many may have no k, or one alone, of what they are whole multiples of.
EMPTY: Final = 8
# Tiles whose k is sliced, for each SM; and squares of 16 x 16 of a C whose k has to be, on any device.
MOST_SLICED: Final = 8
MOST_TILES: Final = 1024
# Blocks of clusters for each SM: more are busy without them.
MOST_CLUSTERED: Final = 2
# Words of both operands and sums of a slice that a thread has; of blocks of 16 warps, of 128 registers a thread.
MOST_WORDS: Final = 128
MANY: Final = 16
MOST_OF_MANY: Final = 60
MOST_REALIGNED: Final = 100  # and past the rows of those in aligned words


def _all_of_k(config: Config, problem: Problem, _: Device) -> bool:
    return problem.k <= most_k(config, problem)


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    k = k_per_slice(config, problem)
    padded = (passes(config, problem) - 1) * pass_k(config, problem) + config["BK"]
    return config["BK"] == STRIP or padded < min(2 * k, k + max(MOST_PADDED, k // 4))


def _sliced(config: Config, _: Problem, __: Device) -> bool:
    return config["SLICE_K"] in {1, config["WARPS"]}


def _clustered(config: Config, problem: Problem, device: Device) -> bool:
    if config["CLUSTER_K"] == 1:
        return True
    few = grid(config, problem) <= MOST_CLUSTERED * max(device.limits.sms, 1)
    return few and config["SLICE_K"] > 1 and device.capability >= CLUSTERS_SINCE


def _slices_have_k(config: Config, problem: Problem, _: Device) -> bool:
    parts = slices(config)
    empty = max(1, parts // EMPTY)
    return parts == 1 or (parts - empty - 1) * k_per_slice(config, problem) < problem.k


def _few_tiles(config: Config, problem: Problem, device: Device) -> bool:
    return config["SLICE_K"] == 1 or tiles(config, problem) <= max(MOST_SLICED * device.limits.sms, MOST_TILES)


def _sums_fit(config: Config, _: Problem, __: Device) -> bool:
    return slices_bytes(config) <= DECLARED_BYTES


def _rows_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] == STRIP or config["BM"] < 2 * problem.m


def _columns_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BN"] == BAND or config["BN"] < 2 * problem.n


def most_own(config: Config, problem: Problem) -> int:
    """Columns that a thread has at most side by side."""
    return min(MOST_OWN_BYTES // problem.itemsize, config["BN"] // BAND * OWN)


def _own_columns(config: Config, problem: Problem, _: Device) -> bool:
    return config["TN"] in {OWN, most_own(config, problem)}


def words(config: Config, problem: Problem) -> int:
    """Words of both operands that a thread has."""
    return (config["BM"] + config["BN"]) // BAND * words_of_line(config, problem)


def words_of_line(config: Config, problem: Problem) -> int:
    """Halves of an instruction's k in a tile, of each of which a thread has a word a line."""
    return config["BK"] // BAND * problem.itemsize // OWN


def past(config: Config, problem: Problem) -> int:
    """Words that a thread has past the rows of MN-major operands in aligned words."""
    realigned = (problem.trans_a and config["REALIGN"] & A > 0) + (not problem.trans_b and config["REALIGN"] & B > 0)
    return realigned * words_of_line(config, problem)


def _fragments_fit(config: Config, problem: Problem, _: Device) -> bool:
    most = MOST_OF_MANY if config["WARPS"] == MANY else MOST_REALIGNED if config["REALIGN"] & (A | B) else MOST_WORDS
    sums = config["BM"] * config["BN"] // WARP if config["SLICE_K"] > 1 else 0
    return words(config, problem) + past(config, problem) + sums <= most


def matrices_to_realign(problem: Problem) -> int:
    """The matrices whose stored rows are no multiples of 16 bytes, as bits; operands only of 2-byte elements."""
    of_operands = operands_to_realign(0, problem) if problem.itemsize == HALF_BYTES else 0
    return of_operands | REALIGN_C * is_c_ragged(problem)


def _realigned(config: Config, problem: Problem, _: Device) -> bool:
    ragged = matrices_to_realign(problem)
    return config["REALIGN"] in {0, ragged & REALIGN_C, ragged}


def most_k(config: Config, problem: Problem) -> int:
    """The most of k that a problem of a class may have: of one pass, or of some passes of each slice."""
    most = pass_k(config, problem)
    return most if config["SLICE_K"] == 1 else most * slices(config) * MOST_PASSES


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) <= MAX_GRID


SPACE: Final = Space(
    parameters={
        "BM": (16, 32, 64),
        "BN": (8, 16, 32, 64),
        "BK": (16, 32, 48, 64, 80, 96, 112, 128),
        "TN": (2, 4, 8),
        "WARPS": (1, 2, 4, 8, 16),
        "SLICE_K": (1, 2, 4, 8, 16),
        "CLUSTER_K": CLUSTERS,
        "REALIGN": (0, 1, 2, 3, 4, 5, 6, 7),
    },
    rules={
        "half of a tile's rows or more past the edge": _rows_fill,
        "half of a tile's columns or more past the edge": _columns_fill,
        "more than 2^31 - 1 tiles": _counted,
        "slices of k that are not a warp's each": _sliced,
        "clusters before sm_90, without slices, or of more blocks than two for each SM": _clustered,
        "slices of k, an eighth of which and more than one are empty": _slices_have_k,
        "slices of k, where tiles fill the SMs several times": _few_tiles,
        "less of k than there is": _all_of_k,
        "half of a tile's k or 32 or more past the end": _k_fills,
        "more words of operands a thread than leave registers for sums": _fragments_fit,
        "columns of a thread that are neither of one instruction nor of as many as make 16 bytes": _own_columns,
        "other matrices in aligned words than those whose rows start anywhere": _realigned,
        "sums of more slices than fit in shared memory": _sums_fit,
        "more threads a block than the device allows": threads_fit(threads),
    },
    reads={
        "half of a tile's rows or more past the edge": ("BM",),
        "half of a tile's columns or more past the edge": ("BN",),
        "more than 2^31 - 1 tiles": ("BM", "BN"),
        "columns of a thread that are neither of one instruction nor of as many as make 16 bytes": ("BN", "TN"),
        "more words of operands a thread than leave registers for sums": (
            "BM",
            "BN",
            "BK",
            "WARPS",
            "SLICE_K",
            "REALIGN",
        ),
        "slices of k that are not a warp's each": ("WARPS", "SLICE_K"),
        "clusters before sm_90, without slices, or of more blocks than two for each SM": (
            "BM",
            "BN",
            "WARPS",
            "SLICE_K",
            "CLUSTER_K",
        ),
        "slices of k, an eighth of which and more than one are empty": ("SLICE_K", "CLUSTER_K"),
        "slices of k, where tiles fill the SMs several times": ("BM", "BN", "SLICE_K"),
        "less of k than there is": ("BK", "SLICE_K", "CLUSTER_K", "REALIGN"),
        "half of a tile's k or 32 or more past the end": ("BK", "SLICE_K", "CLUSTER_K", "REALIGN"),
        "sums of more slices than fit in shared memory": ("BM", "BN", "SLICE_K", "CLUSTER_K"),
        "other matrices in aligned words than those whose rows start anywhere": ("REALIGN",),
        "more threads a block than the device allows": ("WARPS",),
    },
)
