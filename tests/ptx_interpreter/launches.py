"""A launch with its steps before and after it, interpreted: what kernels' tests ask of machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from app.dtypes import numpy_dtype
from kernels.device import Device
from kernels.launch import COUNTERS, OPERANDS, Launch
from tests.ptx_interpreter.bulk_copies import Bound
from tests.ptx_interpreter.machine import Machine
from tests.ptx_interpreter.program import Array, ptx_of
from tests.ptx_interpreter.warp_matrices import Sums, exact_sums

# Pointers of a launch start here and there in memory that is NaN around them.
GAP: Final = 1024


def interpreted(
    launch: Launch, a: Array, b: Array, device: Device, shift: int = 0, draw: Any = None, sums: Sums = exact_sums
) -> tuple[Array, int]:
    """C, and how often reads of shared memory met on a bank; nothing but C and the workspace may be written.

    A, B and C are `shift` bytes off 16. Blocks run in an order that `draw`, a random.Random, chooses, if it is given,
    and their warps run ahead of each other. `sums` is how tensor cores add (warp_matrices.py).
    """
    problem = launch.problem
    starts = [GAP + shift]
    for size in (a.nbytes, b.nbytes, problem.c_bytes):
        starts.append((starts[-1] + size + GAP) // 16 * 16 + shift)
    starts[3] = -(-starts[3] // 128) * 128
    memory = np.full(starts[3] + launch.workspace_bytes + GAP, 0xFF, np.uint8)
    for start, content in zip(starts[:2], (a, b), strict=True):
        memory[start : start + content.nbytes] = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
    memory[starts[3] : starts[3] + min(launch.workspace_bytes, 4 * COUNTERS)] = 0
    readable = np.zeros(len(memory), np.bool_)
    for start, size in zip((*starts[:2], starts[3]), (a.nbytes, b.nbytes, launch.workspace_bytes), strict=True):
        readable[start : start + size] = True
    before, conflicts = memory.copy(), run(launch, starts, memory, readable, device, draw, sums)
    written = slice(starts[2], starts[2] + problem.c_bytes)
    c = memory[written].copy().view(numpy_dtype(problem.dtype)).reshape(problem.batch, problem.m, problem.n)
    before[written] = memory[written]
    left = slice(starts[3] + 4 * COUNTERS, starts[3] + launch.workspace_bytes)
    before[left] = memory[left]
    assert np.array_equal(before, memory), "something else than C was written, or a counter was left"
    return c, conflicts


def run(
    launch: Launch,
    starts: Sequence[int],
    memory: Array,
    readable: Array,
    device: Device,
    draw: Any = None,
    sums: Sums = exact_sums,
) -> int:
    """Bank conflicts of a launch and its steps on A, B, C and the workspace, which begin at `starts`."""
    problem, conflicts = launch.problem, 0
    steps = [launch.as_step(each) for each in launch.before], [launch.as_step(each) for each in launch.after]
    workspace = starts[3] if launch.workspace_bytes else 0
    more = (workspace, *launch.scalars) if launch.scalars else ()
    arguments = (*starts[:3], problem.m, problem.n, problem.k, *more)
    for one in (*steps[0], launch, *steps[1]):
        machine = Machine(ptx_of(one.build, device.architecture.removeprefix("sm_")))
        maps = [Bound(each, starts[OPERANDS.index(each.operand)]) for each in one.maps]
        order = draw.sample(range(one.grid), one.grid) if draw else ()
        machine.launch(one, (*arguments, *maps), memory, readable, order, draw, sums)
        conflicts += machine.conflicts
    return conflicts
