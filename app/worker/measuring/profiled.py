"""The program that a profiler starts: it prepares one product, and launches it once when it is told to."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from app.devices.backend import Operands
from app.devices.worker_entry import import_cuda
from app.tuning.verify.tolerance import operands
from kernels import KERNELS
from kernels.problem import Problem

VENDOR = "vendor"


def specification(device_id: str, cache: Path, problem: Problem, kernel: str, config: dict[str, int]) -> str:
    """The program's argument."""
    return json.dumps([device_id, str(cache), problem.key, kernel, config])


def main() -> None:
    """Prepare, say `ready`, wait for `go` on standard input, and launch once between the profiler's marks."""
    device_id, cache, key, kernel, config = json.loads(sys.argv[1])
    backend, marks = _opened(device_id, Path(cache))
    problem = Problem.of_key(key)
    a, b = operands(problem, 1)
    where = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
    if kernel == VENDOR:
        backend.vendor_run(problem, where)
    else:
        launch = KERNELS[kernel].launch(KERNELS[kernel].space.config(config), problem, backend.device)
        program = backend.compile(launch.build)
        backend.warm(program, launch)
        backend.run(program, launch, where)
    print("ready", flush=True)
    if sys.stdin.readline() != "go\n":
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with marks:
        if kernel == VENDOR:
            backend.vendor_run(problem, where)
        else:
            backend.run(program, launch, where)
    print("done", flush=True)
    os._exit(0)  # the thread that reads is not waited for


def _opened(device_id: str, cache: Path) -> tuple[Any, AbstractContextManager[Any]]:
    """A device, and the marks between which its launches are profiled."""
    if device_id.startswith("cuda"):
        cuda = import_cuda(cache)
        return cuda.CudaBackend(device_id, cache), cuda.profiled()
    from app.devices.opencl import OpenCLBackend  # noqa: PLC0415 - only this process may

    return OpenCLBackend(device_id, cache), nullcontext()


def _end_with_parent() -> None:
    """End once standard input does: whoever started the profiler is gone."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
