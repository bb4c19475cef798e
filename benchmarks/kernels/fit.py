"""Fit the constants of a kernel's cost model to what its configs took, and tell what the model is then worth.

    python -m benchmarks.kernels.fit KERNEL [--trials FILE ...] [--judge FILE ...] [--device cuda:0]

The trials are those that the tests keep of an H200, or `--trials` files of benchmarks.kernels.drawn on your GPU, of
drawn shapes. The constants that minimise the error of the estimates' logarithms are printed as they stand in the
kernel's cost_model.py, where they are written by hand; nothing is changed. What counts is printed after them: the time
of the config of the least estimate over that of the fastest config timed, of the shapes fitted to, of each fifth of
them by a fit to the others, and of the shapes of `--judge`, which should be drawn later.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from app.devices.fleet import open_fleet
from benchmarks.kernels.trials import KEPT, Times, read_trials
from kernels.device import Device
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200

FITTED: Final = {
    "tensor_core": (
        *("LAUNCH", "PACKING", "OF_BANDWIDTH_PACKING", "OF_BANDWIDTH", "LATENCY", "FILLED_BYTES", "MEETING_CLOCKS"),
        *("REALIGNED_CLOCKS", "NARROW_CLOCKS", "STEP_CLOCKS", "MMA_CLOCKS", "AHEAD_SHARE", "PRODUCT_CLOCKS"),
        *("WORD_CLOCKS", "ELEMENT_CLOCKS", "MATRIX_CLOCKS", "COPY_CLOCKS", "STORE_CLOCKS", "LINE_CLOCKS"),
        *("BEGUN_CLOCKS", "TILE_CLOCKS", "PIECE_CLOCKS", "SLICE_CLOCKS", "JOIN_CLOCKS", "SUM_CLOCKS", "SUM_LATENCY"),
        *("CLUSTER_CLOCKS", "SENT_CLOCKS"),
    ),
    "pipelined": (
        *("LAUNCH", "REDUCING", "PACKING", "OF_BANDWIDTH", "OF_BANDWIDTH_SUMS", "OF_BANDWIDTH_PACKING", "WAIT_CLOCKS"),
        *("OWN_COPY_CLOCKS", "FMA_CLOCKS", "LOAD_CLOCKS", "COPY_CLOCKS", "TILE_CLOCKS", "STORE_CLOCKS"),
        *("STAGED_CLOCKS", "SLICE_CLOCKS", "OF_BANDWIDTH_CACHE", "TURNED_CLOCKS", "LINE_CLOCKS", "FILL_BYTES"),
        *("CLUSTER_CLOCKS", "SENT_CLOCKS"),
    ),
    "register_tiled": (
        *("MEETING", "JOINED", "PACKING", "OF_BANDWIDTH", "WAIT_CLOCKS", "FMA_CLOCKS"),
        *("LOAD_CLOCKS", "COPY_CLOCKS", "TILE_CLOCKS", "STORE_CLOCKS", "LINE_CLOCKS", "SLICE_CLOCKS"),
    ),
    "double_tensor": (
        *("LAUNCH", "OF_BANDWIDTH", "WAIT_CLOCKS", "STEP_CLOCKS", "MMA_CLOCKS", "PRODUCT_CLOCKS"),
        *("DEEPEST_CLOCKS", "SHALLOW_CLOCKS", "LOAD_CLOCKS", "COPY_CLOCKS", "TILE_CLOCKS", "ALONE_CLOCKS"),
        *("SECTOR_CLOCKS", "BEHIND_CLOCKS", "JOIN_CLOCKS", "PARTNER_CLOCKS", "SUM_CLOCKS", "CLUSTER_CLOCKS"),
        "SENT_CLOCKS",
    ),
    "double_hopper": (  # its LAUNCH and CACHE_BYTES are chosen
        *("WAIT_CLOCKS", "STEP_CLOCKS", "MMA_CLOCKS", "CLUSTER_CLOCKS", "PRODUCT_CLOCKS", "DEEPEST_CLOCKS"),
        *("LOAD_CLOCKS", "TMA_CLOCKS", "TILE_CLOCKS", "ALONE_CLOCKS", "SECTOR_CLOCKS", "JOIN_CLOCKS"),
        "SUM_CLOCKS",
    ),
    "rank_k": (
        *("LAUNCH", "OF_BANDWIDTH", "PARTIAL_BYTES", "K_CLOCKS", "FMA_CLOCKS", "COPY_CLOCKS", "HALF_COPY_CLOCKS"),
        *("ISSUED_FMA", "ISSUED_LOAD", "ISSUED_COPY", "ISSUED_STORE", "ROUNDED_STORE"),
    ),
    "direct_tensor": (
        *("LAUNCH", "WAIT_LOAD", "WAIT_HALF", "WAIT_WORD", "WAIT_MOVED", "WAIT_STAGED"),
        *("WAIT_STORE", "ELEMENT_CLOCKS", "WORD_CLOCKS", "LINE_CLOCKS", "STORE_CLOCKS", "SINGLE_STORE", "MMA_CLOCKS"),
        *("MOVED_CLOCKS", "ROW_STORE_CLOCKS"),
        *("PASS_CLOCKS", "JOIN_CLOCKS", "SUM_CLOCKS", "CLUSTER_CLOCKS", "BLOCK_CLOCKS", "WARP_CLOCKS", "BEGUN_CLOCKS"),
        *("OF_BANDWIDTH", "STORED_AGAIN"),
    ),
    "direct_double": (
        *("LAUNCH", "OF_BANDWIDTH", "WAIT_LOAD", "WAIT_STORE", "PASS_CLOCKS", "LOAD_CLOCKS", "STORE_CLOCKS"),
        *("MMA_CLOCKS", "LINE_CLOCKS", "JOIN_CLOCKS", "SUM_CLOCKS", "CLUSTER_CLOCKS", "BLOCK_CLOCKS"),
        "ALONE_CLOCKS",
    ),
    "skinny": (
        *("STARTING", "LEAVING", "MEETING", "TAKING", "ONE_GETS", "BUSY", "PARTS", "HALF_BUSY", "COPYING"),
        *("SHORT_COPYING", "CONVERTED", "AROUND", "HALF_ISSUED", "BESIDE", "FILL_CLOCKS", "STEP_CLOCKS"),
        *("FMA_CLOCKS", "LOAD_CLOCKS"),
    ),
    "gemv": (
        *("LAUNCH", "ROUND", "WAVE", "STARTED", "JOINED_BLOCKS", "SUM", "LOAD", "LOAD_SHORT", "PRODUCT"),
        *("ALONE_LOAD", "ALONE_PRODUCT", "ELEMENT", "OF_BANDWIDTH", "OF_ONE", "OF_CACHE", "BESIDE"),
    ),
}
Vector: TypeAlias = npt.NDArray[np.float64]
ENOUGH: Final = 8  # configs of a problem among which a pick says something
FOLDS: Final = 5
FAR: Final = 0.15  # what the error of a config counts that takes far longer than the fastest; that of the fastest 1.15
SCALE: Final = 0.1  # of an error from which on more of it counts less
PRIOR: Final = 0.02  # what a constant's change counts beside: those that nothing tells stay


@dataclass(frozen=True)
class Model:
    """A kernel's cost model on a device, with its constants as logarithms."""

    name: str
    device: Device

    @property
    def module(self) -> ModuleType:
        """Where its constants are."""
        return importlib.import_module(f"kernels.{self.name}.cost_model")

    def constants(self) -> Vector:
        """As they stand."""
        return np.log([float(getattr(self.module, name)) for name in FITTED[self.name]])

    @contextmanager
    def changed(self, constants: Vector) -> Iterator[None]:
        """With other constants, until the block ends."""
        before = self.constants()
        try:
            self._set(constants)
            yield
        finally:
            self._set(before)

    def _set(self, constants: Vector) -> None:
        for name, value in zip(FITTED[self.name], constants, strict=True):
            setattr(self.module, name, exp(value))

    def errors(self, constants: Vector, times: Times) -> Vector:
        """Logarithms of estimates over times, of all configs in order."""
        with self.changed(constants):
            return np.array(
                [
                    log(1e6 * self.module.seconds(config, problem, self.device) / took)
                    for problem, found in times.items()
                    for config, took in found.items()
                ]
            )

    def lost(self, constants: Vector, times: Times) -> list[float]:
        """Of each problem with enough configs, the pick's time over the fastest's, as a logarithm."""
        with self.changed(constants):
            return [self._lost(problem, found) for problem, found in times.items() if len(found) >= ENOUGH]

    def _lost(self, problem: Problem, found: Mapping[Config, float]) -> float:
        pick = min(found, key=lambda config: self.module.seconds(config, problem, self.device))
        return log(found[pick] / min(found.values()))


def fitted(model: Model, times: Times) -> Vector:
    """The constants of the least error, of which that of fast configs counts most."""
    start = model.constants()
    weights = [FAR + min(found.values()) / took for found in times.values() for took in found.values()]

    def residuals(constants: Vector) -> Vector:
        return np.concatenate([weights * model.errors(constants, times), PRIOR * (constants - start)])

    found: Vector = least_squares(residuals, start, loss="soft_l1", f_scale=SCALE).x
    return found


def cross_validated(model: Model, times: Times) -> list[float]:
    """What picks lose on each fifth of the problems, by a fit to the others."""
    lost = []
    for fold in range(FOLDS):
        numbered = list(enumerate(times.items()))
        others = dict(one for number, one in numbered if number % FOLDS != fold)
        lost += model.lost(fitted(model, others), dict(one for number, one in numbered if number % FOLDS == fold))
    return lost


def told(label: str, lost: Sequence[float]) -> str:
    """A line of what picks lose."""
    return f"{label}: {exp(fmean(lost)):.3f} of the fastest, {exp(max(lost)):.2f} at most, {len(lost)} problems"


def opened(name: str | None) -> Device:
    """What the models know of a device of this host, or of an H200."""
    if name is None:
        return H200
    with tempfile.TemporaryDirectory() as cache, open_fleet(name, Path(cache), 2**26) as fleet:
        return fleet.unit().device


def main() -> None:
    """Fit, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=FITTED)
    parser.add_argument("--trials", type=Path, nargs="+", default=[KEPT])
    parser.add_argument("--judge", type=Path, nargs="+", default=[])
    parser.add_argument("--device", help="the one that the trials are of; an H200 without it")
    asked = parser.parse_args()
    model, times = Model(asked.kernel, opened(asked.device)), read_trials(asked.trials)[asked.kernel]
    before, after = model.constants(), fitted(model, times)
    for name, old, new in zip(FITTED[asked.kernel], before, after, strict=True):
        print(f"{name}: Final = {exp(new):.3g}  # {exp(old):.3g}")
    print(told("as it stands", model.lost(before, times)))
    print(told("fitted", model.lost(after, times)))
    print(told("cross-validated", cross_validated(model, times)))
    if asked.judge:
        print(told("judged", model.lost(after, read_trials(asked.judge)[asked.kernel])))


if __name__ == "__main__":
    main()
