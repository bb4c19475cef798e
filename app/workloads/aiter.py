"""AITER's CSV lists of products, tuned or untuned: row-major letters, weights stored n x k."""

from __future__ import annotations

from typing import BinaryIO

from app.workloads.counted import ProductCounter, Workload, problem_of
from app.workloads.options import ReadOptions
from app.workloads.text import decimal, refuse, rows, whole
from kernels.problem import parse_dtype


def read_aiter(stream: BinaryIO, options: ReadOptions) -> Workload:
    """Each row's product; those of a family whose files name no dtype have the options'. Raises InvalidWorkload."""
    counter = ProductCounter("aiter")
    for number, row in rows(stream):
        name = row.get("dtype", "").removeprefix("torch.") or options.dtype
        try:
            dtype = parse_dtype(name)
        except ValueError:
            counter.skip(f"GEMM of {name[:60]}", f"elements of type {name[:60]} are no problem here")
            continue
        sizes = whole(row, "M", number), whole(row, "N", number), whole(row, "K", number)
        try:
            problem = problem_of(sizes, 1, dtype, options.precision, trans_a=False, trans_b=True)
        except ValueError as error:
            refuse(str(error), number)
        micros = decimal(row, "us")
        counter.keep_fastest(
            problem, micros and micros / 1e3, row.get("kernelName") or row.get("libtype") or ""
        ) if micros else counter.add(problem)
    return counter.workload()
