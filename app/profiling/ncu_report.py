"""Nsight Compute's report: what it is asked for, and its raw page as comma-separated values, read.

Sources: NVIDIA's Nsight Compute CLI manual (--csv, --page raw, --print-units) and its Profiling Guide (metrics).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from app.profiling.figures import STALL

_DURATION: Final = "gpu__time_duration.sum"
# What is asked for at a time, each of a few passes: the sections and the metrics of one run of the profiler.
GROUPS: Final = (
    (("SpeedOfLight", "LaunchStats"), ()),
    (("MemoryWorkloadAnalysis",), ()),
    (("Occupancy",), ("dram__bytes_read.sum", "dram__bytes_write.sum")),
    (("WarpStateStats",), ()),
    ((), ("l1tex__data_bank_conflicts_pipe_lsu.sum", "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum")),
)
_NAMES: Final = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_throughput_percent",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory_throughput_percent",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1_throughput_percent",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_throughput_percent",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_throughput_percent",
    "l1tex__t_sector_hit_rate.pct": "l1_hit_percent",
    "lts__t_sector_hit_rate.pct": "l2_hit_percent",
    "dram__bytes.sum.per_second": "dram_bytes_per_second",
    "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum": "loaded_bytes",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "bank_conflicts",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
}
_SHARED: Final = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
_DRAM: Final = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_STALLED: Final = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_ISSUING: Final = {"selected", "not_selected"}  # of warps that could issue: they wait for nothing
_COLUMN: Final = re.compile(r"[^\W_]+__\w[\w.]*")
_ERROR: Final = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)
_UNPROFILED: Final = re.compile(r"^==WARNING==\s*(No kernels were profiled.*)$", re.MULTILINE)
_PREFIXES: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNIT: Final = re.compile(r"([numKMGT]?)(byte|second|s|hz)(/.*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NcuKernel:
    """A kernel of a report: its metrics by their own names, in bytes and seconds."""

    name: str
    metrics: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """How long it ran under the profiler."""
        return self.metrics.get(_DURATION, 0.0)

    def figures(self) -> dict[str, float]:
        """Its metrics by our names."""
        told = {ours: self.metrics[theirs] for theirs, ours in _NAMES.items() if theirs in self.metrics}
        for name, parts in (("shared_bytes", _SHARED), ("dram_bytes", _DRAM)):
            if all(part in self.metrics for part in parts):
                told[name] = sum(self.metrics[part] for part in parts)
        for metric, value in self.metrics.items():
            if (found := _STALLED.fullmatch(metric)) and found.group(1) not in _ISSUING:
                told[STALL + found.group(1)] = value
        return told


def options(sections: Sequence[str], metrics: Sequence[str]) -> tuple[str, ...]:
    """Nsight Compute's options for a group; the time of each kernel tells the product from the steps around it."""
    of_sections = (option for section in sections for option in ("--section", section))
    return (*of_sections, "--metrics", ",".join([_DURATION, *metrics]))


def read_report(text: str) -> list[NcuKernel]:
    """The kernels of a report, in order; raises ValueError with the reason where it has none."""
    rows = list(csv.reader(_table(text)))
    header = next((number for number, row in enumerate(rows) if "Kernel Name" in row), None)
    if header is None:
        raise ValueError(refusal(text) or "Nsight Compute wrote no table")
    found = list(_long(rows[header:]) if "Metric Name" in rows[header] else _wide(rows[header:]))
    if not found:
        raise ValueError(refusal(text) or "Nsight Compute profiled no kernel")
    return found


def refusal(text: str) -> str | None:
    """Why Nsight Compute profiled nothing, in its own words."""
    found = _ERROR.search(text) or _UNPROFILED.search(text)
    return f"Nsight Compute: {found.group(1).strip()}" if found else None


def longest(kernels: Sequence[NcuKernel]) -> NcuKernel:
    """The kernel that ran longest: the product itself, not the steps around it."""
    return max(kernels, key=lambda one: one.seconds)


def _table(text: str) -> list[str]:
    """The lines of the table: the tool's own begin with ==."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("==")]


def _wide(rows: Sequence[Sequence[str]]) -> Iterator[NcuKernel]:
    """Of the raw page: a row of names, one of units, and a row a kernel."""
    header, body = rows[0], rows[1:]
    units = body[0] if body and not body[0][0].strip() else [""] * len(header)
    place = header.index("Kernel Name")
    for row in body:
        if len(row) != len(header) or not row[0].strip().isdigit():
            continue
        told = zip(header, units, row, strict=False)
        values = {name: _value(cell, unit) for name, unit, cell in told if _COLUMN.fullmatch(name)}
        yield NcuKernel(row[place], {name: value for name, value in values.items() if value is not None})


def _long(rows: Sequence[Sequence[str]]) -> Iterator[NcuKernel]:
    """Of the details page: a row a metric, those of one kernel together by their ID."""
    header, body = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    number, kernel, name, unit, cell = map(
        header.index, ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
    )
    starts = [at for at, row in enumerate(body) if at == 0 or row[number] != body[at - 1][number]]
    for start, end in pairwise([*starts, len(body)]):
        rows_of = body[start:end]
        values = {row[name]: _value(row[cell], row[unit]) for row in rows_of}
        yield NcuKernel(rows_of[0][kernel], {each: value for each, value in values.items() if value is not None})


def _value(cell: str, unit: str) -> float | None:
    """A cell's number in bytes, seconds, or as it is; None for what is no number, such as n/a."""
    try:
        number = float(cell.replace(",", "").replace("\N{NO-BREAK SPACE}", ""))
    except ValueError:
        return None
    return number * _scale(unit.strip())


def _scale(unit: str) -> float:
    found = _UNIT.fullmatch(unit)
    prefix = found.group(1) if found else ""
    return _PREFIXES.get(prefix, _PREFIXES.get(prefix.upper(), 1.0)) if prefix else 1.0
