"""Lines of shapes: 4096x16x4096 x 8 bfloat16 nt * 12, where nt says that B is stored transposed and 12 how often."""

from __future__ import annotations

import re
from typing import BinaryIO, Final

from app.workloads.counted import ProductCounter, Workload, problem_of
from app.workloads.options import ReadOptions
from app.workloads.text import refuse, text_lines
from kernels.problem import CLASSES, PRECISIONS, parse_dtype, parse_shape

_LINE: Final = re.compile(
    r"\s*+(?P<shape>[0-9]++(?:\s*+[xX\u00d7]\s*+[0-9]++){0,3})(?P<words>(?:\s++[A-Za-z][A-Za-z0-9]*+)*+)"
    r"\s*+(?:\*\s*+(?P<count>[0-9]{1,15}))?\s*+"
)
_LETTERS: Final = re.compile("[nt]{2}")


def read_shapes(stream: BinaryIO, options: ReadOptions) -> Workload:
    """A product a line, of the options' dtype and precision where it names none; raises InvalidWorkload."""
    counter = ProductCounter("shapes")
    for number, text in text_lines(stream):
        line = text.partition("#")[0]
        if not line.strip():
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            refuse(f"a line is 512x512x512 [x batch] [dtype] [nt] [* count], got {line.strip()[:60]!r}", number)
        try:
            _add(counter, found, options)
        except ValueError as error:
            refuse(str(error), number)
    return counter.workload()


def _add(counter: ProductCounter, found: re.Match[str], options: ReadOptions) -> None:
    m, n, k, batch = parse_shape(found["shape"])
    dtype, precision, letters = options.dtype, options.precision, "nn"
    for word in found["words"].lower().split():
        if _LETTERS.fullmatch(word):
            letters = word
        elif word in PRECISIONS:
            precision = word
        else:
            dtype = parse_dtype(word)
    if precision not in CLASSES[dtype]:
        raise ValueError(f"{dtype} has no precision {precision}")
    count = int(found["count"] or 1)
    if count < 1:
        raise ValueError("a count is at least 1")
    counter.add(problem_of((m, n, k), batch, dtype, precision, letters[0] == "t", letters[1] == "t"), count)
