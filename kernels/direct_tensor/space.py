"""The space of direct_tensor: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.direct_tensor.plan import threads, tiles
from kernels.packing import A, B, is_c_ragged, operands_to_realign
from kernels.problem import Problem
from kernels.rules import MAX_GRID, threads_fit
from kernels.space import Config, Space

# Rows and columns of one instruction, and the most of k that a tile has.
STRIP: Final = 16
BAND: Final = 8
# Columns of one instruction that a thread has, and bytes that it has at most side by side.
OWN: Final = 2
MOST_OWN_BYTES: Final = 16
# Most of k past its end, beside that of an instruction's 16.
MOST_PADDED: Final = 32
REALIGN_C: Final = 4
# Elements from an aligned address to the first of a row.
MOST_EARLY: Final = 7
# Words of both operands that a thread has.
MOST_WORDS: Final = 128
MOST_REALIGNED: Final = 100  # and past the rows of those in aligned words


def _all_of_k(config: Config, problem: Problem, _: Device) -> bool:
    return problem.k <= config["BK"]


def _k_fills(config: Config, problem: Problem, _: Device) -> bool:
    return config["BK"] == STRIP or config["BK"] < min(2 * problem.k, problem.k + MOST_PADDED)


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
    most = MOST_REALIGNED if config["REALIGN"] & (A | B) else MOST_WORDS
    return words(config, problem) + past(config, problem) <= most


def matrices_to_realign(problem: Problem) -> int:
    """The matrices whose stored rows are no multiples of 16 bytes, as bits; operands only of 2-byte elements."""
    return operands_to_realign(0, problem) | REALIGN_C * is_c_ragged(problem)


def _realigned(config: Config, problem: Problem, _: Device) -> bool:
    ragged = matrices_to_realign(problem)
    return config["REALIGN"] in {0, ragged & REALIGN_C, ragged}


def _has_room(config: Config, problem: Problem, _: Device) -> bool:
    k_major = A * (not problem.trans_a) | B * problem.trans_b
    return not config["REALIGN"] & k_major or problem.k + MOST_EARLY <= config["BK"]


def _counted(config: Config, problem: Problem, _: Device) -> bool:
    return tiles(config, problem) <= MAX_GRID


SPACE: Final = Space(
    parameters={
        "BM": (16, 32, 64),
        "BN": (8, 16, 32, 64),
        "BK": (16, 32, 48, 64, 80, 96, 112, 128),
        "TN": (2, 4, 8),
        "WARPS": (1, 2, 4, 8),
        "REALIGN": (0, 1, 2, 3, 4, 5, 6, 7),
    },
    rules={
        "half of a tile's rows or more past the edge": _rows_fill,
        "half of a tile's columns or more past the edge": _columns_fill,
        "more than 2^31 - 1 tiles": _counted,
        "less of k than there is": _all_of_k,
        "half of a tile's k or 32 or more past the end": _k_fills,
        "more words of operands a thread than leave registers for sums": _fragments_fit,
        "columns of a thread that are neither of one instruction nor of as many as make 16 bytes": _own_columns,
        "other matrices in aligned words than those whose rows start anywhere": _realigned,
        "no room in a tile's k for what is before a row that starts anywhere": _has_room,
        "more threads a block than the device allows": threads_fit(threads),
    },
    reads={
        "half of a tile's rows or more past the edge": ("BM",),
        "half of a tile's columns or more past the edge": ("BN",),
        "more than 2^31 - 1 tiles": ("BM", "BN"),
        "columns of a thread that are neither of one instruction nor of as many as make 16 bytes": ("BN", "TN"),
        "more words of operands a thread than leave registers for sums": ("BM", "BN", "BK", "REALIGN"),
        "less of k than there is": ("BK",),
        "half of a tile's k or 32 or more past the end": ("BK",),
        "other matrices in aligned words than those whose rows start anywhere": ("REALIGN",),
        "no room in a tile's k for what is before a row that starts anywhere": ("BK", "REALIGN"),
        "more threads a block than the device allows": ("WARPS",),
    },
)
