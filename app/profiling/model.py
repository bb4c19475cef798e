"""What the model says of a launch: its figures without counters, and its predictions beside those that have them."""

from __future__ import annotations

from kernels.arithmetic import peak_by
from kernels.cost_model import analyse, predict
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config


def predicted(kernel: Kernel, config: Config, problem: Problem, device: Device, registers: int = 0) -> dict[str, float]:
    """What is known before anything is measured: the fewest bytes, what blocks load, shared memory, occupancy."""
    known = analyse(kernel, config, problem, device, registers)
    told = {
        "time_ms": 1e3 * predict(kernel, config, problem, device),
        "dram_bytes": float(problem.bytes),
        "loaded_bytes": float(known.bytes_read),
        "shared_bytes": float(known.shared_bytes),
    }
    return told if known.occupancy is None else told | {"occupancy_percent": 100 * known.occupancy.fraction}


def rates(instructions: str, problem: Problem, device: Device, time_ms: float | None) -> dict[str, float]:
    """Which part of its peaks a product reached in its measured time, if each operand is read once."""
    told = {"dram_bytes": float(problem.bytes)}
    if not time_ms:
        return told
    seconds, limits = time_ms / 1e3, device.limits
    peak = peak_by(instructions, problem, device)
    told["dram_bytes_per_second"] = problem.bytes / seconds
    if peak:
        told["sm_throughput_percent"] = 100 * problem.flops / seconds / peak
    if limits.bandwidth:
        told["dram_throughput_percent"] = 100 * problem.bytes / seconds / limits.bandwidth
    return told
