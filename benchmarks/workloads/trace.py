"""Seconds and memory of reading a torch.profiler trace of 100 MB, and whether its counts are right.

    python -m benchmarks.workloads.trace [--megabytes 100] [--repeat 3]

The trace, the same each time, is that of a decoder: a layer has the operations of `STEP`, each with its stack of Python
functions, its parent, and the kernel that made it, as the profiler writes them. Each reading has a process of its own,
whose peak of memory is told, beside that of an interpreter with the same imports. Writes
benchmarks/results/workloads/trace.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

RESULT: Final = Path("benchmarks/results/workloads/trace.json")
BARS: Final = {"seconds": 5.0, "peak_mb": 200.0}
LAYERS: Final = 32
HIDDEN, HEADS, HEAD, INNER, ROWS, CONTEXT = 4096, 32, 128, 11008, 16, 512
# Name, dims and strides of A and B, and how many microseconds its kernel takes: transposed weights have strides 1, k.
STEP: Final = (
    ("aten::mm", [ROWS, HIDDEN], [HIDDEN, 1], [HIDDEN, 3 * HIDDEN], [1, HIDDEN], 41.5),
    ("aten::bmm", [HEADS, ROWS, HEAD], [ROWS * HEAD, HEAD, 1], [HEADS, HEAD, CONTEXT], [HEAD * CONTEXT, 1, HEAD], 6.25),
    ("aten::bmm", [HEADS, ROWS, CONTEXT], [ROWS * CONTEXT, CONTEXT, 1], [HEADS, CONTEXT, HEAD], None, 6.5),
    ("aten::addmm", [ROWS, HIDDEN], [HIDDEN, 1], [HIDDEN, HIDDEN], [1, HIDDEN], 14.0),
    ("aten::mm", [ROWS, HIDDEN], [HIDDEN, 1], [HIDDEN, 2 * INNER], [1, HIDDEN], 71.0),
    ("aten::mm", [ROWS, INNER], [INNER, 1], [INNER, HIDDEN], [1, INNER], 37.0),
)
_TYPE: Final = "c10::BFloat16"
_READ: Final = """
import json, resource, sys, time
from app.workloads.reader import read_workload
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    found = read_workload(file)
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
counts = {one.problem.key: one.count for one in found.problems}
print(json.dumps({"seconds": seconds, "peak_mb": peak / 1024, "idle_mb": idle / 1024, "counts": counts}))
"""


def events(step: int, layers: int) -> Iterator[dict[str, Any]]:
    """The events of one step of so many layers, in the order of the profiler."""
    each = layers * len(STEP)
    for number in range(step * each, (step + 1) * each):
        now = 1000.0 + 100 * number
        name, a, a_strides, b, b_strides, micros = STEP[number % len(STEP)]
        operands = [a, b] if name != "aten::addmm" else [[b[-1]], a, b]
        strides = [a_strides, b_strides or _rows(b)] if name != "aten::addmm" else [[1], a_strides, b_strides]
        for depth in range(3):
            stack = {"Python id": number * 3 + depth, "Python parent id": number, "Python thread": 0}
            label = f"torch/nn/modules/module.py(1784): _call_impl {depth}"
            yield _event("python_function", label, now - 3 + depth / 2, 90.0 - depth, stack)
        parent = "aten::linear" if name != "aten::bmm" else "aten::matmul"
        yield _event("cpu_op", parent, now, 60.0, {"External id": 4 * number, "Input Dims": [a, b], "Input type": []})
        told = {"Input Dims": operands, "Input type": [_TYPE] * len(operands), "Input Strides": strides}
        yield _event("cpu_op", name, now + 5, 40.0, {"External id": 4 * number + 1, **told})
        launch = {"External id": 4 * number + 1, "cbid": 652, "correlation": number}
        yield _event("cuda_runtime", "cuLaunchKernelEx", now + 20, 5.0, launch)
        made = {"External id": 4 * number + 1, "device": 0, "stream": 7, "grid": [2, 64, 1], "block": [384, 1, 1]}
        yield _event("kernel", f"nvjet_tst_{number % len(STEP)}_bz_NNT", now + 30, micros, made)


def write_trace(path: Path, *, layers: int = LAYERS, steps: int = 0, size: int = 0) -> int:
    """Write a trace of so many steps, or of as many as take `size` bytes; gives the steps."""
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as file:
        file.write(b'{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "GPU"}],\n')
        file.write(b'  "record_shapes": 1,\n  "traceEvents": [\n')
        written = count = 0
        while count < steps or written < size:
            texts = [json.dumps(each, indent=1).encode() for each in events(count, layers)]
            piece = b",\n".join(texts)
            file.write((b",\n" if count else b"") + piece)
            written, count = written + len(piece), count + 1
        file.write(b'\n  ],\n  "traceName": "trace.json"\n}\n')
    return count


def main() -> None:
    """Write the trace, read it a few times, compare the counts with the recipe's, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        steps = write_trace(path, size=asked.megabytes * 10**6)
        figures = [_read(path) for _ in range(asked.repeat)]
        size = path.stat().st_size
        packed = Path(folder) / "trace.json.gz"
        write_trace(packed, steps=steps)
        compressed = _read(packed) | {"bytes": packed.stat().st_size}
    counts = figures[0]["counts"]
    expected = len(counts) == len(STEP) and set(counts.values()) == {steps * LAYERS}
    result = {
        "bytes": size,
        "products": sum(counts.values()),
        "counts_are_the_recipes": expected,
        "seconds": median(each["seconds"] for each in figures),
        "peak_mb": max(each["peak_mb"] for each in figures),
        "idle_mb": figures[0]["idle_mb"],
        "gzip": {name: compressed[name] for name in ("bytes", "seconds", "peak_mb")},
        "bars": BARS,
        "cores": os.cpu_count(),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _read(path: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _event(category: str, name: str, start: float, micros: float, args: dict[str, Any]) -> dict[str, Any]:
    where = {"pid": 4242, "tid": 7 if category == "kernel" else 4242}
    return {"ph": "X", "cat": category, "name": name, **where, "ts": start, "dur": micros, "args": args}


def _rows(dims: list[int]) -> list[int]:
    return [dims[1] * dims[2], dims[2], 1]


if __name__ == "__main__":
    main()
