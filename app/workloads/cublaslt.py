"""The log of cublasLt at CUBLASLT_LOG_LEVEL=5: its Trace lines have the shapes, in column-major letters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import BinaryIO, Final

from app.workloads.counted import ProductCounter, Workload, problem_of, swapped
from app.workloads.options import ReadOptions
from app.workloads.text import decoded, raw_lines, refuse
from kernels.problem import Problem

_CALL: Final = (b"[Trace]", b"[cublasLtMatmul]")
_GROUP: Final = re.compile(r"\b(Adesc|Bdesc|Cdesc|Ddesc|computeDesc|algo)=\[([^\]]*)\]")
_MEMBER: Final = re.compile(r"(?<!\w)(\w++)=(\S+)")  # a long word is read once
_DTYPES: Final = {"R_32F": "float32", "R_64F": "float64", "R_16F": "float16", "R_16BF": "bfloat16"}
_TF32: Final = "COMPUTE_32F_FAST_TF32"
_PLAIN: Final = ("COMPUTE_32F", "COMPUTE_64F", "COMPUTE_16F", _TF32)
_Desc = Mapping[str, str]


class _NoProblem(Exception):
    """A call that is no problem here, for a reason."""


def read_cublaslt(stream: BinaryIO, options: ReadOptions) -> Workload:
    """The products that a program asked cublasLt for; raises InvalidWorkload for a line that is cut."""
    del options  # each line tells all
    counter = ProductCounter("cublaslt")
    for number, line in raw_lines(stream):
        if not all(mark in line for mark in _CALL):
            continue
        groups = {name: dict(_MEMBER.findall(text)) for name, text in _GROUP.findall(decoded(number, line))}
        missing = [name for name in ("Adesc", "Bdesc", "Ddesc", "computeDesc") if name not in groups]
        if missing:
            refuse(f"the line of cublasLtMatmul has no {missing[0]}", number)
        try:
            counter.add(_problem(groups), incumbent=_algorithm(groups.get("algo", {})))
        except _NoProblem as error:
            a, b = (groups[name].get("type", "?") for name in ("Adesc", "Bdesc"))
            counter.skip(f"cublasLtMatmul {a} {b}", str(error))
        except (KeyError, ValueError) as error:
            refuse(f"the line of cublasLtMatmul cannot be read: {error}", number)
    return counter.workload()


def _problem(groups: Mapping[str, _Desc]) -> Problem:
    a, b, d, compute = (groups[name] for name in ("Adesc", "Bdesc", "Ddesc", "computeDesc"))
    types = {each["type"] for each in (a, b, d)}
    dtype = _DTYPES.get(next(iter(types))) if len(types) == 1 else None
    if dtype is None:
        raise _NoProblem(f"elements of type {', '.join(sorted(types))} are no problem here")
    how = compute.get("computeType", "COMPUTE_32F").removesuffix("_PEDANTIC")
    if how not in _PLAIN:
        raise _NoProblem(f"the arithmetic {how} is none of the precisions")
    orders = {each.get("order", "ORDER_COL") for each in (a, b, d)}
    if orders - {"ORDER_COL", "ORDER_ROW"} or len(orders) > 1:
        raise _NoProblem(f"operands stored as {', '.join(sorted(orders))} are no problem here")
    trans = compute.get("transa", "OP_N") != "OP_N", compute.get("transb", "OP_N") != "OP_N"
    sizes = int(d["rows"]), int(d["cols"]), int(a["rows" if trans[0] else "cols"])
    if sizes[2] != int(b["cols" if trans[1] else "rows"]):
        raise ValueError(f"A and B do not fit: k is {sizes[2]} and {b['cols' if trans[1] else 'rows']}")
    make = swapped if "ORDER_COL" in orders else problem_of
    precision = "tf32" if how == _TF32 else "strict"
    return make(sizes, int(d.get("batchCount", "1")), dtype, precision, *trans)


def _algorithm(algo: _Desc) -> str | None:
    """What cublasLt chose, in its own words."""
    told = [algo[name] for name in ("tile", "stages", "clusterShape") if name in algo]
    return " ".join([f"cublasLt algorithm {algo['algoId']}", *told]) if "algoId" in algo else None
