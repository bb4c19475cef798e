"""Which of Triton's configs a drawn shape is tried with, as an autotuner's pruning leaves them, and their binaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Final

from benchmarks.kernels.peers.triton import Cubin, Order, Tile, compile_one, missing, place, read, tiles_for, tiles_of
from kernels.arithmetic import peak
from kernels.device import Device
from kernels.problem import Problem

MOST: Final = 12
PERSISTENT: Final = 3  # of them at most, where tiles are more than SMs
SPLIT: Final = 5  # of them at most, where tiles are fewer
LEAST_STEPS: Final = 4  # along k, of each slice
LARGE: Final = 128 * 128  # elements of a tile that keeps an SM's units busy
STAYING: Final = 64 * 64  # elements of a tile that is worth a program's stay
BUSY: Final = 0.8  # of the bandwidth that so many SMs together have is what one of them can use of its share
SPLITS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def chosen(problem: Problem, device: Device) -> tuple[Tile, ...]:
    """Twelve tiles at most: the best guesses of one tile a program, of programs that stay, and of k in slices."""
    fitting = [tile for tile in tiles_for(problem) if _shared(tile, problem) <= device.limits.shared_bytes]
    ranked = sorted(fitting, key=lambda tile: seconds(tile, problem, device))
    stay = [replace(tile, persistent=1) for tile in ranked if _is_many(tile, problem, device)][:PERSISTENT]
    split = sorted(dict.fromkeys(_split(fitting, problem, device)), key=lambda tile: seconds(tile, problem, device))
    sliced = [tile for tile in split if seconds(tile, problem, device) < seconds(ranked[0], problem, device)][:SPLIT]
    return (*ranked[: MOST - len(stay) - len(sliced)], *stay, *sliced)


def seconds(tile: Tile, problem: Problem, device: Device) -> float:
    """A guess: waves of tiles, each as long as its arithmetic or its loads take; enough to order tiles by."""
    sms = device.limits.sms
    programs = tiles_of(tile, problem) * problem.batch * tile.splits
    depth = ceil(problem.k / tile.BK / tile.splits) * tile.BK
    rate = peak(problem, device) / sms * sqrt(min(1.0, tile.BM * tile.BN / LARGE))
    share = device.limits.bandwidth * BUSY / min(programs, sms)
    each = max(2 * tile.BM * tile.BN * depth / rate, (tile.BM + tile.BN) * depth * problem.itemsize / share / 2)
    sums = 2 * 8 * tile.splits * problem.m * problem.n / device.limits.bandwidth if tile.splits > 1 else 0.0
    return ceil(programs / sms) * each + sums


def _is_many(tile: Tile, problem: Problem, device: Device) -> bool:
    return problem.batch == 1 and tile.BM * tile.BN >= STAYING and tiles_of(tile, problem) > device.limits.sms


def _split(tiles: list[Tile], problem: Problem, device: Device) -> Iterator[Tile]:
    """Tiles with as many slices of k as fill the SMs once or twice."""
    for tile in tiles if problem.batch == 1 else ():
        steps, sms = ceil(problem.k / tile.BK), device.limits.sms
        for waves in (1, 2):
            most = min(waves * sms / tiles_of(tile, problem), steps / LEAST_STEPS)
            fitting = [splits for splits in SPLITS if splits <= most]
            if fitting:
                yield replace(tile, splits=fitting[-1])


def _shared(tile: Tile, problem: Problem) -> int:
    return (tile.BM + tile.BN) * tile.BK * problem.itemsize * (tile.stages - 1)


@dataclass(frozen=True, slots=True)
class Binaries:
    """Triton's binaries, compiled by a pool while others use the device; `begun` are those that the pool has or had."""

    cache_dir: Path
    pool: ProcessPoolExecutor
    begun: dict[Path, Future[None]] = field(default_factory=dict)

    def start(self, orders: Iterable[Order]) -> None:
        """Have orders compiled, and return at once."""
        for path, order in missing({order: place(order, self.cache_dir) for order in orders}).items():
            if path not in self.begun:
                self.begun[path] = self.pool.submit(compile_one, order, path)

    def ready(self, orders: Iterable[Order]) -> tuple[Cubin, ...]:
        """The binaries of orders, waiting for those that are not there yet."""
        wanted = {order: place(order, self.cache_dir) for order in orders}
        self.start(wanted)
        for path in wanted.values():
            if path in self.begun:
                self.begun[path].result()
        return tuple(read(order, path) for order, path in wanted.items())
