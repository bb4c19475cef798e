"""What the pages of the ladder say of each kernel, from its source, its space and the committed measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from benchmarks.kernels.peers.rows import Row, geomean, read_row
from benchmarks.kernels.peers.shapes import NAIVE, TILED, TUNED, VENDOR
from benchmarks.report.peer_table import markdown
from benchmarks.report.readme import PEERS, load
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.support import coverage

# A parameter and what it means, which goes on in lines that are further indented.
_PARAMETER: Final = re.compile(r"^// ([A-Z][A-Z_]+) +(\S.*(?:\n// {4,}\S.*)*)$", re.MULTILINE)
# Those that a launch is given, where the source does not explain them itself.
_GIVEN: Final = {
    "GROUP_M": "rows of tiles that go through C's columns together",
    "SPLIT_K": "blocks that share the k of a tile",
    "BLOCKS": "SMs whose blocks stay and take tiles in turn, or 0: a block for each tile",
}
LITTLE: Final = 0.01  # below this a whole per cent says nothing
_SEEDS: Final = {"naive": NAIVE, "tiled": TILED}  # measured on every strict float32 shape, chosen for none


def ladder() -> str:
    """A table of all kernels in their order."""
    lines = [(f"[{one.name}]({one.name}.md)", one.summary.rstrip("."), one.shapes) for one in CATALOGUE.values()]
    return "\n".join(["| kernel | idea | for |", "| --- | --- | --- |", *(f"| {' | '.join(line)} |" for line in lines)])


def facts(kernel: Kernel) -> str:
    """A kernel's source, what it covers, its parameters and how fast it was measured."""
    meanings = _meanings(kernel)
    parameters = [
        (f"`{name}`", ", ".join(map(str, values)), meanings.get(name) or _GIVEN.get(name, ""))
        for name, values in kernel.space.parameters.items()
    ]
    covers = [
        (one.dtype, one.precision, one.platform, ", ".join(one.architectures) or "all", f"`{one.instructions}`")
        for one in coverage(kernel)
    ]
    refused = f"{len(kernel.space):,} configurations in all, before {len(kernel.space.rules)} rules refuse some."
    return "\n".join(
        [
            f"Source: `kernels/{kernel.file}`, and `GET /kernels/{kernel.name}/source`. For {kernel.shapes}. {refused}",
            "",
            _measured(kernel.name),
            "",
            *_left(("dtype", "precision", "platform", "architectures", "instructions"), covers),
            "",
            *_left(("parameter", "values", "meaning"), parameters),
        ]
    )


def _left(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns are text."""
    first, _, *rest = markdown(head, lines)
    return [first, f"| {' | '.join(['---'] * len(head))} |", *rest]


def _meanings(kernel: Kernel) -> Mapping[str, str]:
    """The parameters as the first lines of the source explain them."""
    text = files("kernels").joinpath(kernel.file).read_text(encoding="utf-8")
    return {found[1]: " ".join(found[2].replace("\n//", " ").split()) for found in _PARAMETER.finditer(text)}


def _measured(name: str) -> str:
    """How many shapes it was chosen for, and its speed beside the vendor's default and the fastest peer."""
    figure = _SEEDS.get(name, TUNED)
    rows = [row for row in _rows() if (of := row.of(figure)) and of.kernel == name and row.of(VENDOR)]
    if name in _SEEDS:
        rows = [row for row in rows if row.problem.dtype == "float32" and row.problem.precision == "strict"]
    if not rows:
        return "It was the fastest of our kernels on no shape of [the benchmarks](../benchmarks.md) on an H200."
    ratios = [_ms(row, VENDOR) / _ms(row, figure) for row in rows]
    share = f"{geomean(ratios):.0%} of the speed of cuBLAS's default in the geometric mean"
    spread = f"{min(ratios):.{0 if min(ratios) > LITTLE else 1}%} to {max(ratios):.0%}"
    many = f"{len(rows)} shapes" if len(rows) > 1 else "one shape"
    if name in _SEEDS:
        return f"On an H200, on {many} of strict float32: {share} ({spread})."
    where = f"{many} of [the benchmarks](../benchmarks.md)"
    return f"On an H200 it was the fastest of our kernels on {where}: {share} ({spread})."


def _ms(row: Row, name: str) -> float:
    figure = row.of(name)
    if figure is None or figure.median_ms is None:
        raise ValueError(f"{name} was not measured on {row.problem}")
    return figure.median_ms


@cache
def _rows() -> tuple[Row, ...]:
    return tuple(read_row(line) for name in PEERS for line in load(name)["shapes"])
