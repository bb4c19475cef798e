"""The table of what accuracy.py measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report.peer_table import markdown

NOTE = (
    "Of each product the relative L2 error against float64, and in brackets the largest |error|_ij over"
    " k 2^-23 (|A| |B|)_ij, which is at most 1 in an accurate one. *declined*: the kernel finds that its range does not"
    " do for these operands, and the product is made in strict float32."
)


def shown(error: Mapping[str, Any]) -> str:
    """A cell: relative L2 and share of the bound, or that the product was declined."""
    if error["relative_l2"] is None:
        return "declined"
    unlike = f", {error['unlike']} not finite" if error["unlike"] else ""
    return f"{error['relative_l2']:.1e} ({error['of_bound']:.1g}{unlike})"


def section(report: Mapping[str, Any]) -> str:
    """A paragraph on where it was measured, and a line for each pair of operands."""
    names = list(dict.fromkeys(each["by"] for line in report["lines"] for each in line["errors"]))
    rows = []
    for line in report["lines"]:
        cells = {each["by"]: shown(each) for each in line["errors"]}
        rows.append([line["operands"], *(cells.get(name, "-") for name in names)])
    where = f"float32 ({report['precision']}) on {report['device']} ({report['environment']}). {NOTE}"
    table = markdown(("operands", *names), rows)
    return "\n".join([where, "", *table])
