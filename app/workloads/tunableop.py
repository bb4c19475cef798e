"""PyTorch's TunableOp CSV, results or untuned: products in BLAS's column-major letters."""

from __future__ import annotations

import re
from typing import BinaryIO, Final

from app.workloads.counted import ProductCounter, Workload, swapped
from app.workloads.options import ReadOptions
from app.workloads.text import decimal, refuse, text_lines

_OPERATION: Final = re.compile(r"(?P<kind>[A-Za-z]{0,32}?Gemm[A-Za-z]{0,64}?TunableOp)_(?P<types>.+)_[NT]{2}")
_PARAMETERS: Final = re.compile(
    r"(?P<ta>[nt])(?P<tb>[nt])_(?P<m>[0-9]{1,10})_(?P<n>[0-9]{1,10})_(?P<k>[0-9]{1,10})"
    r"(?:_B_(?P<batch>[0-9]{1,10}))?(?P<rest>_[A-Za-z0-9_.]*)?"
)
_DTYPES: Final = {"float": "float32", "double": "float64", "Half": "float16", "BFloat16": "bfloat16"}


def read_tunableop(stream: BinaryIO, options: ReadOptions) -> Workload:
    """The products of a file of results, with their times, or of one of untuned products; raises InvalidWorkload."""
    counter = ProductCounter("tunableop")
    for number, text in text_lines(stream):
        if not text.strip() or text.startswith(("#", "Validator,")):
            continue
        operation, _, rest = text.partition(",")
        parameters, _, result = rest.partition(",")
        solution, _, ms = result.partition(",")
        _add(counter, number, (operation.strip(), parameters.strip()), (solution.strip() or None, ms), options)
    return counter.workload()


def _add(
    counter: ProductCounter, number: int, what: tuple[str, str], result: tuple[str | None, str], options: ReadOptions
) -> None:
    operation, found = _OPERATION.fullmatch(what[0]), _PARAMETERS.fullmatch(what[1])
    if operation is None:
        refuse(f"no operation of TunableOp: {what[0][:60]!r}", number)
    if found is None:
        refuse(f"parameters are tn_M_N_K[_B_BATCH][_ld_...], got {what[1][:60]!r}", number, len(what[0]) + 2)
    dtype = _DTYPES.get(operation["types"])
    if dtype is None:
        counter.skip(what[0], f"elements of type {operation['types'][:60]} are no problem here")
        return
    sizes = int(found["m"]), int(found["n"]), int(found["k"])
    letters = found["ta"] == "t", found["tb"] == "t"
    try:
        problem = swapped(sizes, int(found["batch"] or 1), dtype, options.precision, *letters)
    except ValueError as error:
        refuse(str(error), number, len(what[0]) + 2)
    counter.add(problem, 1, decimal({"ms": result[1]}, "ms"), result[0])
