"""What a warp's loads and stores cost in a lesson: turns of shared memory's banks, sectors of global memory.

Exact, from the addresses that the first warp's threads compute for the first tile of a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kernels.lessons.spaces import grid_of_threads, rows, square, warps
from kernels.problem import Problem
from kernels.rules import WARP
from kernels.space import Config

BANKS: Final = 32
BANK_BYTES: Final = 4
SECTOR_BYTES: Final = 32
# Bytes that shared memory gives a warp in one turn.
TURN_BYTES: Final = BANKS * BANK_BYTES
FLOAT: Final = 4
WIDE: Final = 16


@dataclass(frozen=True, slots=True)
class WarpAccess:
    """One load or store of a warp: `taken` turns or sectors where `least` would do for its bytes.

    `what` names it in the source's words; `memory` is shared or global.
    """

    what: str
    memory: str
    taken: int
    least: int


def turns(addresses: list[int], width: int) -> int:
    """Turns in which shared memory serves a warp: as many as different words of one bank, for each 128 bytes asked."""
    together = TURN_BYTES // max(width, BANK_BYTES)
    taken = 0
    for start in range(0, len(addresses), together):
        words = {
            (at + step) // BANK_BYTES
            for at in addresses[start : start + together]
            for step in range(0, width, BANK_BYTES)
        }
        banks = [word % BANKS for word in words]
        taken += max(banks.count(bank) for bank in set(banks))
    return taken


def sectors(addresses: list[int], width: int) -> int:
    """Sectors of 32 bytes of global memory that a warp touches."""
    return len({at // SECTOR_BYTES for at in addresses} | {(at + width - 1) // SECTOR_BYTES for at in addresses})


def accesses(number: int, config: Config, problem: Problem) -> tuple[WarpAccess, ...]:
    """What a warp of a lesson asks of both memories, in the source's order; nothing where TMA and wgmma do it."""
    found = _OF[number](config, problem) if number in _OF else ()
    return tuple(found)


def _shared(what: str, addresses: list[int], width: int = FLOAT) -> WarpAccess:
    distinct = len({at + step for at in addresses for step in range(0, width, BANK_BYTES)}) * BANK_BYTES
    least = max(-(-distinct // TURN_BYTES), 1) if width == FLOAT else -(-len(addresses) * width // TURN_BYTES)
    return WarpAccess(what, "shared", turns(addresses, width), least)


def _global(what: str, addresses: list[int], width: int = FLOAT) -> WarpAccess:
    distinct = len({at + step for at in addresses for step in range(0, width, BANK_BYTES)}) * BANK_BYTES
    return WarpAccess(what, "global", sectors(addresses, width), max(-(-distinct // SECTOR_BYTES), 1))


def _threads(across: int) -> list[tuple[int, int]]:
    """Where the threads of the first warp are: tx and ty."""
    return [(me % across, me // across) for me in range(WARP)]


def _naive(turned: bool) -> Callable[[Config, Problem], list[WarpAccess]]:
    def of(config: Config, problem: Problem) -> list[WarpAccess]:
        across, _ = square(config)
        places = [(ty, tx) if turned else (tx, ty) for tx, ty in _threads(across)]
        return [
            _global("loads of A", [row * problem.k * FLOAT for row, _ in places]),
            _global("loads of B", [col * FLOAT for _, col in places]),
        ]

    return of


def _tiled(config: Config, problem: Problem) -> list[WarpAccess]:
    tile, places = config["TILE"], _threads(config["TILE"])
    line = tile + config.get("PAD", 0)
    return [
        _global("loads of A", [(ty * problem.k + tx) * FLOAT for tx, ty in places]),
        _shared("stores to As", [(tx * line + ty) * FLOAT for tx, ty in places]),
        _global("loads of B", [(ty * problem.n + tx) * FLOAT for tx, ty in places]),
        _shared("stores to Bs", [(ty * tile + tx) * FLOAT for tx, ty in places]),
        _shared("loads of As", [ty * FLOAT for _, ty in places]),
        _shared("loads of Bs", [tx * FLOAT for tx, _ in places]),
    ]


def _filled(config: Config, problem: Problem, pad: int, wide: int) -> list[WarpAccess]:
    """Both tiles brought in by rounds of `wide` floats a thread, A's turned."""
    bm, bn, bk, width = config["BM"], config["BN"], config["BK"], wide * FLOAT
    first = [me * wide for me in range(WARP)]
    return [
        _global("loads of A", [(i // bk * problem.k + i % bk) * FLOAT for i in first], width),
        _shared("stores to As", [(i % bk * (bm + pad) + i // bk) * FLOAT for i in first]),
        _global("loads of B", [(i // bn * problem.n + i % bn) * FLOAT for i in first], width),
        _shared("stores to Bs", [i * FLOAT for i in first], width),
    ]


def _thread_rows(config: Config, problem: Problem) -> list[WarpAccess]:
    places = _threads(rows(config)[0])
    return [
        *_filled(config, problem, 4, 1),
        _shared("loads of As", [ty * config["TM"] * FLOAT for _, ty in places]),
        _shared("loads of Bs", [tx * FLOAT for tx, _ in places]),
    ]


def _thread_tile(pad: int, wide: int) -> Callable[[Config, Problem], list[WarpAccess]]:
    def of(config: Config, problem: Problem) -> list[WarpAccess]:
        places = _threads(grid_of_threads(config)[0])
        return [
            *_filled(config, problem, pad, wide),
            _shared("loads of As", [ty * config["TM"] * FLOAT for _, ty in places], wide * FLOAT),
            _shared("loads of Bs", [tx * config["TN"] * FLOAT for tx, _ in places], wide * FLOAT),
        ]

    return of


def _warp_tile(config: Config, problem: Problem) -> list[WarpAccess]:
    lanes = config["WN"] // config["TN"]
    return [
        *_filled(config, problem, 4, 4),
        _shared("loads of As", [lane // lanes * WIDE for lane in range(WARP)], WIDE),
        _shared("loads of Bs", [lane % lanes * WIDE for lane in range(WARP)], WIDE),
    ]


def _staged(config: Config, problem: Problem) -> list[WarpAccess]:
    bn, bk, lanes = config["BN"], config["BK"], config["WN"] // config["TN"]
    first = [me * 4 for me in range(WARP)]
    return [
        _global("copies of A", [(i // bk * problem.k + i % bk) * FLOAT for i in first], WIDE),
        _global("copies of B", [(i // bn * problem.n + i % bn) * FLOAT for i in first], WIDE),
        _shared("loads of As", [lane // lanes * (bk + 4) * FLOAT for lane in range(WARP)], WIDE),
        _shared("loads of Bs", [lane % lanes * WIDE for lane in range(WARP)], WIDE),
    ]


def _short_elements(config: Config, problem: Problem) -> list[WarpAccess]:
    """Tiles of 16 bits, eight elements at once; the rows that ldmatrix or wmma reads begin a line apart."""
    bn, bk = config["BN"], config["BK"]
    first = [me * 8 for me in range(min(WARP, warps(config)[0]))]
    return [
        _global("copies of A", [(i // bk * problem.k + i % bk) * 2 for i in first], WIDE),
        _global("copies of B", [(i // bn * problem.n + i % bn) * 2 for i in first], WIDE),
        _shared("loads of As", [(lane % 16 * (bk + 8) + lane // 16 * 8) * 2 for lane in range(WARP)], WIDE),
        _shared("loads of Bs", [(lane % 16 * (bn + 8) + lane // 16 * 8) * 2 for lane in range(WARP)], WIDE),
    ]


_OF: Final[Mapping[int, Callable[[Config, Problem], list[WarpAccess]]]] = {
    1: _naive(turned=False),
    2: _naive(turned=True),
    3: _tiled,
    4: _tiled,
    5: _thread_rows,
    6: _thread_tile(4, 1),
    7: _thread_tile(4, 4),
    8: _thread_tile(4, 4),
    9: _warp_tile,
    10: _warp_tile,
    11: _staged,
    12: _short_elements,
    13: _short_elements,
}
