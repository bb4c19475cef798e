"""Products from host memory with little of the device, against the same on the device, and cuBLASXt, in one run.

python -m benchmarks.serving.out_of_core [--sizes 32768] [--dtype float32] [--limit 17179869184] [--rounds 2]
    [--trans nn] [--blocks 2048 4096 8192]

What is in core is one launch, timed by its kernel's seconds; out of core is all from operands in the slab to C there.
A launch in core begins after its operands' copies, while which the chip has cooled: every product begins after half a
second without one.
Of a size that exceeds the device, `--in-core SIZE` names the one whose rate in core counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

import numpy as np

from app.dtypes import Array, numpy_dtype
from app.main import opened
from app.services.matmul.buffers import ProductPlan
from app.services.service import Service
from app.settings import Settings
from kernels.problem import Problem

RESULT: Final = Path("benchmarks/results/serving/out_of_core.json")
BLOCKS: Final = (2048, 4096, 8192)
_LETTER: Final = {"float32": ("S", ctypes.c_float), "float64": ("D", ctypes.c_double)}
_REST: Final = 0.5  # seconds before each product


def main() -> None:
    """Measure each size, in turn with fresh services, and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32768])
    parser.add_argument("--in-core", type=int, default=None, help="the size whose rate in core counts")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--trans", choices=["nn", "nt", "tn", "tt"], default="nn")
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--limit", type=int, default=2**34)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--blocks", type=int, nargs="*", default=BLOCKS, help="block sizes of cuBLASXt")
    arguments = parser.parse_args()
    rows = [measured(size, arguments) for size in arguments.sizes]
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def measured(size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates in TFLOP/s of one size: in core, out of core, and of cuBLASXt at each block size."""
    trans_a, trans_b = (letter == "t" for letter in arguments.trans)
    problem = Problem(size, size, size, dtype=arguments.dtype, trans_a=trans_a, trans_b=trans_b)
    own = arguments.in_core or size
    inside = replace(problem, m=own, n=own, k=own)
    in_core = served(inside, arguments, None)
    out = served(problem, arguments, arguments.limit)
    row: dict[str, Any] = {"size": size, "dtype": problem.dtype, "trans": arguments.trans}
    row |= {"limit": arguments.limit, "devices": arguments.devices}
    row |= {"in_core": in_core["kernel_tflops"], "out_of_core": out["tflops"], "tiles": out["tiles"]}
    row |= {"of_in_core": out["tflops"] / in_core["kernel_tflops"], "kernel": out["kernel"], "phases": out["seconds"]}
    if problem.dtype in _LETTER and arguments.devices.startswith("cuda"):
        row["cublasxt"] = cublasxt(problem, arguments.rounds, arguments.blocks)
    return row


def served(problem: Problem, arguments: argparse.Namespace, limit: int | None) -> dict[str, Any]:
    """The best of several products of one problem, whose operands lie in the slab."""
    with tempfile.TemporaryDirectory() as folder:
        room = problem.bytes + 2**26
        given = Settings(
            data_dir=Path(folder), devices=arguments.devices, slab_bytes=room, device_bytes=limit, max_body_bytes=room
        )
        with opened(given, "a benchmark") as service, service.matmul.reserve(problem) as placed:
            for operand in (placed.a, placed.b):
                fill(operand)
            plan = ProductPlan() if limit is None else placed.plan
            found = [product(service, replace(placed, plan=plan)) for _ in range(arguments.rounds + 1)][1:]
    best = min(found, key=lambda each: float(each["wall"]))
    flops = problem.flops / 1e12
    return best | {"tflops": flops / best["wall"], "kernel_tflops": flops / best["seconds"]["kernel"]}


def product(service: Service, placed: Any) -> dict[str, Any]:
    """One product: its wall seconds, and its phases."""
    sleep(_REST)
    started = perf_counter()
    made = service.matmul.multiply(placed)
    wall = perf_counter() - started
    return {"wall": wall, "seconds": made.seconds, "tiles": made.tiles, "kernel": made.kernel}


def fill(operand: Array) -> None:
    """Numbers that are neither all alike nor drawn one by one: a drawn row, turned by one element a row."""
    row = np.random.default_rng(1).standard_normal(2 * operand.shape[1]).astype(numpy_dtype(operand.dtype.name))
    for number in range(len(operand)):
        start = number % operand.shape[1]
        operand[number] = row[start : start + operand.shape[1]]


def cublasxt(problem: Problem, rounds: int, blocks: Sequence[int]) -> dict[str, float]:
    """The rates of cuBLASXt from page-locked memory, by block size.

    Its matrices are stored by columns: it computes the transposed C, of B and A in this order.
    """
    import cupy  # noqa: PLC0415 - a GPU's
    from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415

    library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    letter, scalar = _LETTER[problem.dtype]
    gemm: Callable[..., int] = getattr(library, f"cublasXt{letter}gemm")
    handle, devices = ctypes.c_void_p(), (ctypes.c_int * 1)(0)
    expect(library.cublasXtCreate(ctypes.byref(handle)))
    expect(library.cublasXtDeviceSelect(handle, 1, devices))
    sizes = (problem.a_bytes, problem.b_bytes, problem.c_bytes)
    memory = [cupy.cuda.alloc_pinned_memory(nbytes) for nbytes in sizes]
    for each, nbytes in zip(memory[:2], sizes, strict=False):
        flat = np.frombuffer(each, numpy_dtype(problem.dtype), nbytes // problem.itemsize)
        fill(flat.reshape(problem.m, -1))
    a, b, c = (ctypes.c_void_p(each.ptr) for each in memory)
    one, zero, size = scalar(1), scalar(0), ctypes.c_size_t(problem.m)
    rates = {}
    for block in blocks:
        expect(library.cublasXtSetBlockDim(handle, block))
        taken = []
        for _ in range(rounds):
            sleep(_REST)
            started = perf_counter()
            factors = ctypes.byref(one), ctypes.byref(zero)
            matrices = (factors[0], b, size, a, size, factors[1], c, size)
            expect(gemm(handle, problem.trans_b, problem.trans_a, size, size, size, *matrices))
            taken.append(perf_counter() - started)
        rates[str(block)] = problem.flops / min(taken) / 1e12
    expect(library.cublasXtDestroy(handle))
    return rates


def expect(status: int) -> None:
    """Raise RuntimeError where cuBLASXt says that it failed."""
    if status:
        raise RuntimeError(f"cuBLASXt answers {status}")


if __name__ == "__main__":
    main()
