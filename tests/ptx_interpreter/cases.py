"""Small CUDA kernels for the tests of machine, and their launches on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.ptx_interpreter.machine import Machine
from tests.ptx_interpreter.program import Array, ptx_of
from tests.ptx_interpreter.warp_matrices import Sums, exact_sums

GAP = 4096


def launched(
    body: str,
    arrays: Sequence[Array],
    architecture: str = "90",
    threads: int = 32,
    grid: int = 1,
    pool: int = 0,
    head: str = "",
    maps: Sequence[Any] = (),
    draw: Any = None,
    sums: Sums = exact_sums,
) -> tuple[list[Array], Machine]:
    """What arrays hold after `kernel(unsigned *a, unsigned *b, ...)` with this body ran; maps are its last arguments.

    A map is (which array, byte offset, ...), as a function of where the array begins.
    """
    names = "abcdefgh"[: len(arrays)]
    given = [f"unsigned *{name}" for name in names]
    given += [f"const __grid_constant__ Map map{place}" for place in range(len(maps))]
    attributes = f"{head} __launch_bounds__({threads})"
    text = (
        "typedef unsigned long long u64; struct __align__(64) Map { u64 words[16]; };\n"
        "#define ADDRESS(p) ((unsigned)__cvta_generic_to_shared(p))\n"
        f'extern "C" __global__ void {attributes} kernel({", ".join(given)})\n'
        f"{{\nextern __shared__ __align__(1024) unsigned char pool[];\nconst int me = threadIdx.x;\n{body}\n}}\n"
    )
    build = Build("case", text, "kernel", (), dynamic_smem=True)
    launch = Launch("case", Config(()), Problem(1, 1, 1), build, grid, (threads, 1), pool)
    starts, at = [], GAP
    for array in arrays:
        starts.append(at)
        at = -(-(at + array.nbytes + GAP) // 1024) * 1024
    memory, readable = np.full(at, 0xFF, np.uint8), np.zeros(at, np.bool_)
    for start, array in zip(starts, arrays, strict=True):
        memory[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        readable[start : start + array.nbytes] = True
    machine = Machine(ptx_of(build, architecture))
    machine.launch(launch, (*starts, *(each(starts) for each in maps)), memory, readable, (), draw, sums)
    found = [
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape).copy()
        for start, array in zip(starts, arrays, strict=True)
    ]
    return found, machine
