"""CUTLASS's profiler CSV: a row for each way to compute a product, of which the fastest is the incumbent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, Final

from app.workloads.counted import ProductCounter, Workload, problem_of, swapped
from app.workloads.options import ReadOptions
from app.workloads.text import decimal, refuse, rows, whole
from kernels.problem import Problem

_DTYPES: Final = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "tf32": "float32"}
_LAYOUTS: Final = ("row", "column")


def read_cutlass(stream: BinaryIO, options: ReadOptions) -> Workload:
    """The products of a profiler's report; raises InvalidWorkload."""
    counter = ProductCounter("cutlass")
    for number, row in rows(stream):
        types = [row.get(name, "").partition(":") for name in ("A", "B")]
        out = (row.get("D") or row.get("C", "")).partition(":")
        dtypes = {_DTYPES.get(one[0]) for one in (*types, out)}
        if len(dtypes) > 1 or None in dtypes:
            told = " ".join(one[0] for one in (*types, out))
            counter.skip(f"GEMM of {told[:60]}", f"elements of type {told[:60]} are no problem here")
            continue
        layouts = [one[2] for one in (*types, out)]
        if any(layout not in _LAYOUTS for layout in layouts):
            refuse(f"a layout is row or column, got {', '.join(layouts)[:60]}", number)
        try:
            problem = _problem(row, number, str(dtypes.pop()), layouts, options, tf32=types[0][0] == "tf32")
        except ValueError as error:
            refuse(str(error), number)
        is_right = row.get("Disposition", "passed") in {"passed", "not_verified", "not_run", ""}
        counter.keep_fastest(problem, decimal(row, "Runtime") if is_right else None, row.get("Operation", ""))
    return counter.workload()


def _problem(
    row: Mapping[str, str], number: int, dtype: str, layouts: list[str], options: ReadOptions, *, tf32: bool
) -> Problem:
    sizes = whole(row, "m", number), whole(row, "n", number), whole(row, "k", number)
    batch = whole(row, "batch_count", number, 1)
    precision = "tf32" if tf32 else options.precision
    a, b, out = (layout == "column" for layout in layouts)
    if out:  # C by columns: the product in BLAS's letters, whose operands by rows are its transposed ones
        return swapped(sizes, batch, dtype, precision, not a, not b)
    return problem_of(sizes, batch, dtype, precision, a, b)
