"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from app.cli.figures import beside, config_text, naive_ms, timing_text
from tilewise import Best, Conditions, Device, Kernel

# A table that is piped into a file has no terminal's width to keep to.
PIPED_WIDTH = 110


def consoles(*, quiet: bool = False) -> tuple[Console, Console]:
    """Results go to standard output, everything else to standard error; of that nothing where it is to be quiet."""
    return _console(stderr=False), Console(stderr=True, quiet=True) if quiet else _console(stderr=True)


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


def print_json(value: Any, *, stderr: bool = False) -> None:
    """One JSON document on standard output, or on standard error where that is taken."""
    print(json.dumps(plain(value), indent=2), file=sys.stderr if stderr else sys.stdout)


def _how(best: Best) -> dict[str, str]:
    """By which instructions, and why strictly where that was not asked for."""
    told = {"instructions": best.instructions} if best.instructions else {}
    return told | ({"precision": f"{best.precision}: {best.declined}"} if best.declined else {})


def answer(best: Best) -> Table:
    """One best config, a fact a line."""
    facts = {
        "problem": str(best.problem),
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
    if (naive := naive_ms(best)) and best.timing:
        facts["gained"] = f"{naive / best.timing.median_ms:.2f} times the best naive config's speed"
    facts |= beside(best)
    if best.conditions and (meanwhile := conditions_text(best.conditions)):
        facts["meanwhile"] = meanwhile
    if best.error:
        facts["error"] = f"{best.error.relative_l2:.1e} relative L2, {best.error.max_scaled:.1e} largest scaled"
    return fact_table(facts)


def fact_table(facts: Mapping[str, str]) -> Table:
    """Facts by name, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
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
    for name in ("Id", "Name", "Units", "Memory", "Compiled for", "Driver", "Compiler"):
        table.add_column(name, overflow="fold")
    for device in devices:
        memory = f"{device.memory_bytes / 2**30:.1f} GiB"
        software = device.architecture, device.driver, device.compiler
        table.add_row(device.id, device.name, units_text(device), memory, *software)
    return table


def units_text(device: Device) -> str:
    """How many multiprocessors a GPU has, or cores a CPU."""
    return f"{device.limits.get('sms', 0):.0f} {'SMs' if device.platform == 'cuda' else 'cores'}"


def model_text(model: str) -> str:
    """A device model as people read it: a CPU has cores."""
    _, _, rest = model.partition(" | ")
    return model if rest.startswith("sm_") else model.replace(" SMs |", " cores |")
