"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from app.client import Accuracy, Best, Conditions, Device, Kernel, Problem, Timing

# A table that is piped into a file has no terminal's width to keep to.
PIPED_WIDTH = 110


def consoles() -> tuple[Console, Console]:
    """Results go to standard output, everything else to standard error."""
    return _console(stderr=False), _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=PIPED_WIDTH)


def plain(value: Any) -> Any:
    """A value as JSON takes it; of a dataclass every member."""
    if is_dataclass(value):
        return {member.name: plain(getattr(value, member.name)) for member in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(plain(value), indent=2))


def config_text(config: Mapping[str, int] | None) -> str:
    """BM=64 BN=32 BK=16."""
    return " ".join(f"{name}={value}" for name, value in (config or {}).items())


def timing_text(timing: Timing) -> str:
    """The median with half the width of its 95 % interval, in milliseconds."""
    if timing.ci95_ms is None:
        return f"{timing.median_ms:.4g} ms (one sample, by {timing.policy})"
    low, high = timing.ci95_ms
    return f"{timing.median_ms:.4g} ms ± {(high - low) / 2:.2g} (95 %, {timing.samples} samples, by {timing.policy})"


def problem_text(problem: Problem) -> str:
    """The sizes with whatever is not the default."""
    words = [str(problem.shape), problem.dtype]
    words += [problem.precision] if problem.precision != "strict" else []
    words += [name for name in ("trans_a", "trans_b") if getattr(problem, name)]
    return " ".join(words)


def comparison(bests: Sequence[Best]) -> Table:
    """The seeds' own table: naive, tiled and the vendor's library of each shape, with what tiling gains."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)  # just fits a terminal of 80 columns
    table.add_column("Size", no_wrap=True)
    table.add_column("Kernel", no_wrap=True)
    table.add_column("Config")
    for name in ("Time (ms)", "GFLOP/s", "Speed-up", "Error"):
        table.add_column(name, justify="right", no_wrap=True)
    for best in bests:
        naive = _naive_ms(best)
        for number, (name, config, timing, gflops, error) in enumerate(_rows(best)):
            size = str(best.problem.shape) if number == 0 else ""
            table.add_row(size, name, config, *_figures(timing, gflops, error, naive))
        table.add_section()
    return table


def comparison_note(bests: Sequence[Best]) -> str:
    """What the table's words mean, and which library the vendor's is."""
    vendors = {entry.name for best in bests if (entry := (best.baselines or {}).get("vendor")) and entry.timing}
    vendor = f" Vendor is {', '.join(sorted(vendors))}." if vendors else ""
    return f"* the best. Speed-up is over the best naive config; error is relative L2 against float64.{vendor}"


_Row = tuple[str, str, Timing | None, float | None, Accuracy | None]


def _rows(best: Best) -> Iterable[_Row]:
    baselines = best.baselines or {}
    for name in ("naive", "tiled"):
        if (entry := baselines.get(name)) and name != best.kernel:
            yield name, config_text(entry.config), entry.timing, entry.gflops, entry.error
        elif name == best.kernel:
            yield f"{name} *", config_text(best.config), best.timing, best.gflops, best.error
    if best.kernel not in ("naive", "tiled"):
        yield f"{best.kernel} *", config_text(best.config), best.timing, best.gflops, best.error
    if vendor := baselines.get("vendor"):
        yield "vendor", "" if vendor.timing else (vendor.reason or ""), vendor.timing, vendor.gflops, vendor.error


def _figures(
    timing: Timing | None, gflops: float | None, error: Accuracy | None, naive: float | None
) -> tuple[str, str, str, str]:
    if timing is None:
        return "-", "-", "-", "-"
    return (
        f"{timing.median_ms:.4g}",
        f"{gflops:.1f}" if gflops else "-",
        f"{naive / timing.median_ms:.2f}x" if naive and timing.median_ms else "-",
        f"{error.relative_l2:.1e}" if error else "-",
    )


def _naive_ms(best: Best) -> float | None:
    if best.kernel == "naive":
        return best.timing.median_ms if best.timing else None
    naive = (best.baselines or {}).get("naive")
    return naive.timing.median_ms if naive and naive.timing else None


def _how(best: Best) -> dict[str, str]:
    """By which instructions, and why strictly where that was not asked for."""
    told = {"instructions": best.instructions} if best.instructions else {}
    return told | ({"precision": f"{best.precision}: {best.declined}"} if best.declined else {})


def answer(best: Best) -> Table:
    """One best config, a fact a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    facts = {
        "problem": problem_text(best.problem),
        "device": best.device,
        "kernel": best.kernel,
        "config": config_text(best.config),
        "match": _match(best),
    }
    facts |= _how(best)
    if best.launch:
        threads = " x ".join(map(str, best.launch.block))
        facts["launch"] = f"{best.launch.grid} blocks of {threads} threads, {best.launch.shared_bytes} shared bytes"
    if best.timing:
        facts["time"] = timing_text(best.timing)
    if best.gflops:
        facts["speed"] = f"{best.gflops:.1f} GFLOP/s"
    if (naive := _naive_ms(best)) and best.timing:
        facts["gained"] = f"{naive / best.timing.median_ms:.2f} times the best naive config's speed"
    if best.timing and (default := (best.baselines or {}).get("default")) and default.timing:
        facts["untuned"] = f"{default.timing.median_ms / best.timing.median_ms:.2f} times the best's time by default"
    if best.conditions and (meanwhile := conditions_text(best.conditions)):
        facts["meanwhile"] = meanwhile
    if best.error:
        facts["error"] = f"{best.error.relative_l2:.1e} relative L2, {best.error.max_scaled:.1e} largest scaled"
    for name, text in facts.items():
        table.add_row(f"[bold]{name}[/]", text)
    return table


def conditions_text(conditions: Conditions) -> str:
    """Clocks, power, temperature and reasons for lower clocks, as far as they are known."""
    units = {"sm_mhz": "MHz", "memory_mhz": "MHz of memory", "watts": "W", "celsius": "degrees Celsius"}
    values = ((getattr(conditions, name), unit) for name, unit in units.items())
    return ", ".join([*(f"{value:.0f} {unit}" for value, unit in values if value is not None), *conditions.throttled])


def _match(best: Best) -> str:
    words = [best.match]
    tuned = best.matched_problem
    if tuned and tuned != best.problem:
        words.append(f"tuned for {tuned.shape}")
    if best.expected_loss and best.loss_bound:
        words.append(f"expected at {best.expected_loss:.2f} times a tune's own time, {best.loss_bound:.2f} at most")
    if best.provisional:
        words.append("so far: its tune is under way")
    return ", ".join(words)


def kernel_table(kernels: Sequence[Kernel]) -> Table:
    """The ladder: what each kernel computes where, by which instructions."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("Kernel", "Class", "Instructions", "Where"):
        table.add_column(name, overflow="fold")
    for kernel in kernels:
        places: dict[tuple[str, str], list[str]] = {}
        for one in kernel.covers:
            where = " ".join(one.architectures) or one.platform
            places.setdefault((where, one.instructions), []).append(_class(one.dtype, one.precision))
        for number, ((where, path), classes) in enumerate(places.items()):
            table.add_row("" if number else kernel.name, ", ".join(classes), path, where)
        table.add_section()
    return table


def _class(dtype: str, precision: str) -> str:
    return dtype if precision == "strict" else f"{dtype} {precision}"


def device_table(devices: Sequence[Device]) -> Table:
    """The devices, one a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("Id", "Name", "Architecture", "Memory", "Driver", "Compiler"):
        table.add_column(name, overflow="fold")
    for device in devices:
        memory = f"{device.memory_bytes / 2**30:.1f} GiB"
        table.add_row(device.id, device.name, device.architecture, memory, device.driver, device.compiler)
    return table
