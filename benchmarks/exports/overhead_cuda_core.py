"""Microseconds of the host for a call of an export for cuda.core, and for cuda.core's own launch of the same.

    python overhead_cuda_core.py CALLS ROUNDS

Runs in the export's folder, of which alone it imports; its last line is one of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any


def main(calls: int, rounds: int) -> None:
    """Measure both."""
    sys.path.insert(0, str(Path.cwd()))
    own: Any = import_module("tilewise_launch")
    problem, gemm = own.MANIFEST["problem"], import_module("tilewise_gemm").Gemm()
    m, n, k, batch = (problem[name] for name in ("m", "n", "k", "batch"))
    stream, each = gemm.device.default_stream, batch * own.DTYPE.itemsize
    held = [gemm.device.allocate(size * each, stream=stream) for size in (m * k, k * n, m * n)]
    a, b, c = (int(buffer.handle) for buffer in held)
    told = {"us_a_call": _micros(own, lambda: gemm.multiply(a, b, c, (m, n, k, batch)), calls, rounds)}
    launches = own.product(own.MANIFEST, m, n, k, batch).launches
    if len(launches) == 1 and not any(isinstance(one, own.QueuedMap) for one in launches[0].arguments):
        workspace = gemm._workspace  # noqa: SLF001 - what the export's own call has just used
        places = {"a": a, "b": b, "c": c, "workspace": workspace}
        told["cuda_core_us"] = _micros(own, _bare(own, gemm, stream, launches[0], places), calls, rounds)
    print(json.dumps(told))


def _bare(own: Any, gemm: Any, stream: Any, launch: Any, places: dict[str, int]) -> Callable[[], None]:
    """cuda.core's own launch of the same kernel, without what the export adds to it."""
    core: Any = import_module("cuda.core")
    config = core.LaunchConfig(grid=launch.grid, block=(*launch.block, 1), shmem_size=launch.shared_bytes)
    kernel = gemm._kernels[launch.entry]  # noqa: SLF001 - the kernel that the export launches
    given = [own.np.int64(one) if isinstance(one, int) else places[one] for one in launch.arguments]
    return lambda: core.launch(stream, config, kernel, *given)


def _micros(own: Any, call: Callable[[], None], calls: int, rounds: int) -> float:
    """The median over rounds, each of which is waited for outside the clock; the first warms up."""
    taken = []
    for _ in range(rounds + 1):
        began = perf_counter()
        for _ in range(calls):
            call()
        taken.append(1e6 * (perf_counter() - began) / calls)
        own.driven("cuCtxSynchronize")
    return median(taken[1:])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
