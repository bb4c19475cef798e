"""The space of tiled: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.rules import grid_fits, shared_fits, threads_fit
from kernels.space import Config, Space
from kernels.tiled.plan import shared_bytes, threads

SIZES: Final = (4, 8, 16, 32, 64)
HALF_BYTES: Final = 2
MOST_THREADS: Final = 1024


def _halves_fit(config: Config, problem: Problem, device: Device) -> bool:
    """Whether ptxas does not aim at two blocks of 1,024 threads on an SM, which then spill (seen for sm_100)."""
    count, phase = threads(config), config["BK"]
    return device.platform != "cuda" or problem.itemsize > HALF_BYTES or (count, phase) != (MOST_THREADS, SIZES[-1])


SPACE: Final = Space(
    parameters={"BM": SIZES, "BN": SIZES, "BK": SIZES},
    rules={
        "more threads a block than the device allows": threads_fit(threads),
        "more shared memory a block than the device allows": shared_fits(shared_bytes),
        "more than 2^31 - 1 blocks": grid_fits,
        "16-bit k tiles that take more registers than 1,024 threads have": _halves_fit,
    },
)
