"""The arithmetic of tiling (a first cut until the whole is there)."""

from __future__ import annotations

from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config


def predict(kernel: Kernel, config: Config, problem: Problem, device: Device) -> float:
    """Seconds, from above."""
    tile = 1 if kernel.name == "naive" else min(config["BM"], config["BN"])
    moved = problem.flops // 2 * 2 * problem.itemsize / tile
    return moved / device.limits.bandwidth + problem.flops / device.limits.peak * 8
