"""Features of a config for search models, from its launch alone, of similar scale."""

from __future__ import annotations

from math import ceil, log2

from kernels.arithmetic import peak
from kernels.cost_model import Occupancy, analyse, occupancy, predict
from kernels.device import Device, Limits
from kernels.kernel import Kernel
from kernels.problem import Problem
from kernels.space import Config


def features(kernel: Kernel, config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """A legal config's row: log2 of predicted seconds, then figures of its launch, its tile, and each parameter's log2.

    Of one length for a kernel. Where neither the kernel has a model nor a config BM and BN nothing is predicted: every
    config of the kernel has the same first figure, the time of the problem's products at the device's peak.
    """
    return (
        predicted(kernel, config, problem, device),
        *_launch(kernel, config, problem, device.limits),
        *_tile(kernel, config, problem, device),
        *(_log(value) for _, value in config.items_),
    )


def _is_tiled(config: Config) -> bool:
    return "BM" in config and "BN" in config


def predicted(kernel: Kernel, config: Config, problem: Problem, device: Device) -> float:
    """Log2 of a legal config's predicted seconds: by the kernel's own model where it has one."""
    if kernel.seconds is not None:
        return log2(kernel.seconds(config, problem, device))
    tiled = _is_tiled(kernel.modelled(config))
    return log2(predict(kernel, config, problem, device) if tiled else problem.flops / peak(problem, device))


def _launch(kernel: Kernel, config: Config, problem: Problem, limits: Limits) -> tuple[float, ...]:
    """Threads, blocks, shared bytes and elements of C a thread, and how they fill warps, SMs and waves."""
    plan = kernel.plan(config, problem)
    threads = plan.block[0] * plan.block[1]
    warp = max(limits.warp, 1)
    resident = occupancy(limits, threads, plan.shared_bytes, 0) or Occupancy(1, 1.0, "")
    waves = plan.grid / (max(limits.sms, 1) * max(resident.blocks_per_sm, 1))
    return (
        log2(threads),
        log2(plan.grid),
        _log(plan.shared_bytes),
        log2(problem.batch * problem.m * problem.n / (plan.grid * threads)),
        threads / (ceil(threads / warp) * warp),
        resident.fraction,
        log2(max(resident.blocks_per_sm, 1)),
        log2(waves),
        waves / ceil(waves),
    )


def _tile(kernel: Kernel, config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """A tile's area, aspect and intensity, and the part of the launched products that is wanted."""
    if not _is_tiled(kernel.modelled(config)):
        return ()
    known = analyse(kernel, config, problem, device)
    tile = kernel.modelled(config)
    bm, bn = tile["BM"], tile["BN"]
    return log2(bm * bn), log2(bm / bn), log2(known.intensity), known.flops_owned / known.flops_launched


def _log(value: int) -> float:
    """The log2 of a count; a count of nothing is as far below one as one is below two."""
    return log2(value) if value > 0 else -1.0
