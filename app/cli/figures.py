"""Figures of a best and its baselines, as tables print them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.table import Table

from tilewise import Accuracy, Best, Timing

_WIDE: Final = 0.02  # half an interval over its median, from which a figure is marked
_DISTURBED: Final = 0.1  # from which differences are warned of
_BASELINES: Final = ("naive", "tiled")
_NOTE: Final = """\
* the best: the fastest of ours. All times of a size were measured in turn, in one round; ± is half their 95 % interval,
~ says that it is 2 % or more. Speed-up is over the best naive config; error is relative L2 against float64."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a shape: a kernel with its figures, or none of them and the reason."""

    name: str
    config: Mapping[str, int] | None
    timing: Timing | None
    gflops: float | None
    error: Accuracy | None
    reason: str | None = None


def comparison(bests: Sequence[Best]) -> Table:
    """Naive, tiled, the best, the untuned default and the vendor's library of each shape, with what tuning gains."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)  # just fits a terminal of 80 columns
    table.add_column("Size", no_wrap=True)
    table.add_column("Kernel", no_wrap=True)
    table.add_column("Config", overflow="fold")
    for name in ("Time (ms)", "GFLOP/s", "Speed-up", "Error"):
        table.add_column(name, justify="right", no_wrap=True)
    for best in bests:
        naive = naive_ms(best)
        for number, row in enumerate(_rows(best)):
            size = str(best.problem.shape) if number == 0 else ""
            table.add_row(size, row.name, config_text(row.config), *_figures(row, naive))
        table.add_section()
    return table


def comparison_note(bests: Sequence[Best]) -> str:
    """What the table's words and marks mean, which library the vendor's is, and why figures are missing."""
    vendors = {entry.name for best in bests if (entry := (best.baselines or {}).get("vendor")) and entry.timing}
    lines = [_NOTE]
    if vendors:
        lines[-1] += f" Vendor is {', '.join(sorted(vendors))}."
    faster = [str(best.problem.shape) for best in bests if best.vendor_is_faster]
    if faster:
        lines.append(f"The vendor's library is faster at {', '.join(faster)}. It stands beside, and is never the best.")
    lines += [
        f"{best.problem.shape} {row.name}: {row.reason}."
        for best in bests
        for row in _rows(best)
        if row.timing is None and row.reason
    ]
    widths = [width for best in bests for row in _rows(best) if row.timing and (width := half_width(row.timing))]
    if widths and max(widths) >= _DISTURBED:
        lines.append(f"The machine was disturbed: differences below {100 * max(widths):.0f} % may say nothing here.")
    return "\n".join(lines)


def beside(best: Best) -> dict[str, str]:
    """The baselines, the untuned default and the vendor's library, each as one fact of the best's own round."""
    entries, facts = best.baselines or {}, dict[str, str]()
    for name in ("naive", "tiled", "default", "vendor"):
        if (entry := entries.get(name)) is None or best.timing is None:
            continue
        label = "untuned" if name == "default" else name
        if entry.timing is None:
            facts[label] = f"not measured: {entry.reason}" if entry.reason else "not measured"
        elif (entry.name, entry.config) == (best.kernel, best.config):
            facts[label] = "is the best itself"
        else:
            ratio = entry.timing.median_ms / best.timing.median_ms
            which = f" by {entry.name}" if name in {"default", "vendor"} else ""
            facts[label] = f"{timing_text(entry.timing)}{which}, {ratio:.2f} times the best's time"
    if best.vendor_is_faster:
        facts["vendor"] += "; the vendor's library is never the best"
    return facts


def config_text(config: Mapping[str, int] | None) -> str:
    """BM=64,BN=32,BK=16."""
    return ",".join(f"{name}={value}" for name, value in (config or {}).items())


def timing_text(timing: Timing) -> str:
    """The median with half the width of its 95 % interval, in milliseconds; marked where that is wide."""
    mark = "~" if is_wide(timing) else ""
    if timing.ci95_ms is None:
        return f"{mark}{timing.median_ms:.4g} ms (one sample, by {timing.policy})"
    low, high = timing.ci95_ms
    how = f"95 %, {timing.samples} samples, by {timing.policy}"
    return f"{mark}{timing.median_ms:.4g} ms ± {(high - low) / 2:.2g} ({how})"


def median_text(timing: Timing) -> str:
    """The median in milliseconds, marked where its interval is wide or there was no time for more samples."""
    return f"{'~' if is_wide(timing) else ''}{timing.median_ms:.4g}"


def half_width(timing: Timing) -> float | None:
    """Half the interval over the median; None if one sample says nothing of it."""
    if timing.ci95_ms is None or not timing.median_ms:
        return None
    return (timing.ci95_ms[1] - timing.ci95_ms[0]) / 2 / timing.median_ms


def is_wide(timing: Timing) -> bool:
    """Whether a figure is to be marked: its interval is wide, or there was no time for as many samples as it takes."""
    width = half_width(timing)
    return timing.limited or width is None or width >= _WIDE


def naive_ms(best: Best) -> float | None:
    """What the best naive config took in the best's round."""
    if best.kernel == "naive":
        return best.timing.median_ms if best.timing else None
    naive = (best.baselines or {}).get("naive")
    return naive.timing.median_ms if naive and naive.timing else None


def _rows(best: Best) -> Iterator[_Row]:
    baselines, own = best.baselines or {}, _Row(f"{best.kernel} *", best.config, best.timing, best.gflops, best.error)
    told = [(best.kernel, best.config)]
    for name in _BASELINES:
        entry = baselines.get(name)
        if name == best.kernel:
            yield own
        elif entry:
            told.append((name, entry.config or {}))
            yield _Row(name, entry.config, entry.timing, entry.gflops, entry.error, entry.reason)
    if best.kernel not in _BASELINES:
        yield own
    default = baselines.get("default")
    if default and (default.name, default.config) not in told:
        yield _Row("default", default.config, default.timing, default.gflops, default.error, default.reason)
    if vendor := baselines.get("vendor"):
        yield _Row("vendor", None, vendor.timing, vendor.gflops, vendor.error, vendor.reason)


def _figures(row: _Row, naive: float | None) -> tuple[str, str, str, str]:
    timing = row.timing
    if timing is None:
        return "-", "-", "-", "-"
    width = half_width(timing)
    spread = "" if width is None else f" ±{100 * width:.2g}%" if width < 1 else " ±>99%"
    return (
        f"{median_text(timing)}{spread}",
        f"{row.gflops:.1f}" if row.gflops else "-",
        f"{naive / timing.median_ms:.2f}x" if naive and timing.median_ms else "-",
        f"{row.error.relative_l2:.1e}" if row.error else "-",
    )
