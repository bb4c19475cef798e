"""hipBLASLt's lists of products, YAML or command lines of its bench: column-major letters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import BinaryIO, Final

from app.workloads.counted import ProductCounter, Workload, swapped
from app.workloads.options import ReadOptions
from app.workloads.text import refuse, text_lines, whole
from kernels.problem import Problem

_YAML: Final = re.compile(r"\s*-\s*\{(?P<members>.*)\}\s*")
_MEMBER: Final = re.compile(r"(?<!\w)([A-Za-z_]\w*+)\s*+:\s*+([^,{}]*)")
_OPTION: Final = re.compile(r"(?:^|\s)--?([A-Za-z_]\w*)[\s=]+([^\s-]\S*)")
_BENCH: Final = "hipblaslt-bench"
_DTYPES: Final = {"f32_r": "float32", "f64_r": "float64", "f16_r": "float16", "bf16_r": "bfloat16"}


def read_hipblaslt(stream: BinaryIO, options: ReadOptions) -> Workload:
    """The product of each entry; raises InvalidWorkload for a line that is neither form."""
    counter = ProductCounter("hipblaslt")
    for number, text in text_lines(stream):
        line = text.partition("#")[0]
        if not line.strip():
            continue
        members = _members(line, number)
        types = {members.get(f"{name}_type", members.get("precision", "f32_r")) for name in "abcd"}
        dtype = _DTYPES.get(next(iter(types))) if len(types) == 1 else None
        if dtype is None:
            told = ", ".join(sorted(types))[:60]
            counter.skip(f"matmul of {told}", f"elements of type {told} are no problem here")
            continue
        try:
            counter.add(_problem(members, number, dtype, options))
        except ValueError as error:
            refuse(str(error), number)
    return counter.workload()


def _members(line: str, number: int) -> dict[str, str]:
    yaml = _YAML.fullmatch(line)
    if yaml is not None:
        found = _MEMBER.findall(yaml["members"])
    elif _BENCH in line:
        found = _OPTION.findall(line.partition(_BENCH)[2])
    else:
        refuse(f"a line is '- {{ function: matmul, M: ... }}' or a {_BENCH} command, got {line.strip()[:60]!r}", number)
    return {name.lower().removeprefix("size"): value.strip().strip("'\"") for name, value in found}


def _problem(members: Mapping[str, str], number: int, dtype: str, options: ReadOptions) -> Problem:
    sizes = whole(members, "m", number), whole(members, "n", number), whole(members, "k", number)
    letters = [members.get(name, "N").upper() for name in ("transa", "transb")]
    if not {*letters} <= {"N", "T", "C"}:
        raise ValueError(f"transA and transB are N or T, got {', '.join(letters)[:40]}")
    precision = "tf32" if members.get("compute_type") == "xf32_r" else options.precision
    batch = whole(members, "batch_count", number, 1)
    return swapped(sizes, batch, dtype, precision, letters[0] != "N", letters[1] != "N")
