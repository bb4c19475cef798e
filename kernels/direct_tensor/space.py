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


def _all_of_k(config: Config, problem: Problem, _: Device) -> bool:
    return problem.k <= config["BK"]


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] == STRIP or config["BK"] < 2 * problem.k


def _rows_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BM"] == STRIP or config["BM"] < 2 * problem.m


def _columns_fill(config: Config, problem: Problem, _: Device) -> bool:
    return config["BN"] == BAND or config["BN"] < 2 * problem.n


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) <= MAX_GRID


SPACE: Final = Space(
    parameters={"BM": (16, 32, 64), "BN": (8, 16, 32, 64), "BK": (16, 32), "WARPS": (1, 2, 4, 8)},
    rules={
        "half of a tile's rows or more past the edge": _rows_fill,
        "half of a tile's columns or more past the edge": _columns_fill,
        "more than 2^31 - 1 tiles": _counted,
        "less of k than there is": _all_of_k,
        "half of a tile's k or more past the end": _k_fills,
        "more threads a block than the device allows": threads_fit(threads),
    },
    reads={
        "half of a tile's rows or more past the edge": ("BM",),
        "half of a tile's columns or more past the edge": ("BN",),
        "more than 2^31 - 1 tiles": ("BM", "BN"),
        "less of k than there is": ("BK",),
        "half of a tile's k or more past the end": ("BK",),
        "more threads a block than the device allows": ("WARPS",),
    },
)
