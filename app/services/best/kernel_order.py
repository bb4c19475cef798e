"""Which kernels compute a problem on a device, in the order in which they are taken untuned and searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from app.errors import Unsupported
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.residuals import by_corrected, corrected_seconds, residuals


def covering(problem: Problem, device: Device) -> list[Kernel]:
    """The kernels that compute such a problem on such a device, in ladder order; raises Unsupported for none."""
    kernels = [kernel for kernel in CATALOGUE.values() if kernel.covers(problem, device)]
    if not kernels:
        raise Unsupported(f"no kernel computes {problem.dtype} ({problem.precision}) on {device.id}")
    return kernels


def untuned(problem: Problem, device: Device) -> Iterator[Kernel]:
    """The kernels that compute a problem, the one to take untuned first. Raises Unsupported for none.

    That is the highest rung of those preferred for the problem. Where this kernel's estimates are corrected, all whose
    estimates are come first, by the corrected seconds of their defaults.
    """
    by_rule = _by_rule(covering(problem, device), problem, device)
    first = next(by_rule)
    learnt = residuals(first, problem, device)
    if learnt is None:
        yield first
        yield from by_rule
        return
    kernels = [first, *by_rule]
    corrected = [kernel for kernel in kernels if residuals(kernel, problem, device) is not None]
    seconds = [_corrected_seconds(kernel, problem, device) for kernel in corrected]
    yield from by_corrected(corrected, seconds, learnt.first(problem))
    yield from (kernel for kernel in kernels if kernel not in corrected)


def _by_rule(kernels: Sequence[Kernel], problem: Problem, device: Device) -> Iterator[Kernel]:
    """The highest rung of those preferred for the problem first.

    A rung is asked when its turn comes: to choose it, some compare estimates.
    """
    others = []
    for kernel in reversed(kernels):
        if kernel.preferred_untuned(problem, device):
            yield kernel
        else:
            others.append(kernel)
    yield from others


def _corrected_seconds(kernel: Kernel, problem: Problem, device: Device) -> float:
    """Of its default; infinite where the device allows none."""
    default = kernel.default(problem, device)
    is_legal = kernel.space.refusal(default, problem, device) is None
    return corrected_seconds(kernel, default, problem, device) if is_legal else inf


def searched(problem: Problem, device: Device) -> list[Kernel]:
    """The kernels that compute a problem, as a tune takes them: in ladder order, but the untuned choice's the last.

    Raises Unsupported for none.
    """
    first = next(untuned(problem, device))
    return [*(kernel for kernel in covering(problem, device) if kernel is not first), first]


def unemulated(problem: Problem, device: Device) -> str | None:
    """Why a problem that is to be emulated is computed strictly from the start on a device; None where it is not."""
    kernels = CATALOGUE.values()
    if problem.precision != "emulated" or any(kernel.covers(problem, device) for kernel in kernels):
        return None
    if (problem.dtype, problem.precision) not in {one for kernel in kernels for one in kernel.classes}:
        return f"no kernel emulates {problem.dtype}"
    able = [kernel for kernel in kernels if kernel.class_refusal(problem, device) is None]
    reasons = (f"{kernel.name} does not emulate it: {kernel.refusal(problem, device)}" for kernel in able)
    return "; ".join(reasons) or f"no kernel emulates {problem.dtype} on {device.id}"


def default_launch(kernel: Kernel, problem: Problem, device: Device) -> Launch:
    """The launch of a kernel's untuned choice; raises Unsupported where its space refuses even that."""
    try:
        return kernel.launch(kernel.default(problem, device), problem, device)
    except ValueError as refusal:
        raise Unsupported(f"{kernel.name} cannot run {problem} on {device.id}: {refusal}") from refusal
