"""The space of direct_tensor: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.direct_tensor.plan import threads, tiles
from kernels.problem import Problem
from kernels.rules import MAX_GRID, threads_fit
from kernels.space import Config, Space

# Rows and columns of one instruction, and the most of k that a tile has.
STRIP: Final = 16
BAND: Final = 8
# Columns of one instruction that a thread has, and what it has at most side by side: 16 bytes.
OWN: Final = 2
MOST_OWN: Final = 8
# Words of both operands that a thread has.
MOST_WORDS: Final = 96


def _all_of_k(config: Config, problem: Problem, _: Device) -> bool:
    return problem.k <= config["BK"]


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] == STRIP or config["BK"] < 2 * problem.k


def _rows_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] == STRIP or config["BM"] < 2 * problem.m


def _columns_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BN"] == BAND or config["BN"] < 2 * problem.n


def _own_columns(config: Config, _: Problem, __: Device) -> bool:
    return config["TN"] in {OWN, min(MOST_OWN, config["BN"] // BAND * OWN)}


def _fragments_fit(config: Config, _: Problem, __: Device) -> bool:
    return (config["BM"] + config["BN"]) // BAND * config["BK"] // BAND <= MOST_WORDS


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) <= MAX_GRID


SPACE: Final = Space(
    parameters={
        "BM": (16, 32, 64),
        "BN": (8, 16, 32, 64),
        "BK": (16, 32, 64, 96, 128),
        "TN": (2, 4, 8),
        "WARPS": (1, 2, 4, 8),
    },
    rules={
        "half of a tile's rows or more past the edge": _rows_fill,
        "half of a tile's columns or more past the edge": _columns_fill,
        "more than 2^31 - 1 tiles": _counted,
        "less of k than there is": _all_of_k,
        "half of a tile's k or more past the end": _k_fills,
        "more words of operands a thread than leave registers for sums": _fragments_fit,
        "columns of a thread that are neither of one instruction nor of as many as make 16 bytes": _own_columns,
        "more threads a block than the device allows": threads_fit(threads),
    },
    reads={
        "half of a tile's rows or more past the edge": ("BM",),
        "half of a tile's columns or more past the edge": ("BN",),
        "more than 2^31 - 1 tiles": ("BM", "BN"),
        "columns of a thread that are neither of one instruction nor of as many as make 16 bytes": ("BN", "TN"),
        "more words of operands a thread than leave registers for sums": ("BM", "BN", "BK"),
        "less of k than there is": ("BK",),
        "half of a tile's k or more past the end": ("BK",),
        "more threads a block than the device allows": ("WARPS",),
    },
)
