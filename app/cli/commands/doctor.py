"""tilewise doctor: what this installation stands on, what is wrong with it, and what to do about that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from app.cli import render
from app.cli.commands import doctor_checks
from app.cli.commands.doctor_checks import Check
from app.cli.exit_codes import Exit
from app.cli.matrices import relative_l2
from app.cli.options import Json, Url, settings
from app.cli.session import Session, session
from app.errors import TilewiseError
from app.settings import Settings
from tilewise import Client, ClientError, Device
from tilewise.arguments import ProductArguments

_SHAPE: Final = (64, 48, 32)  # m, n and k of the product that each device makes
_TOLERATED: Final = 1e-5  # of its relative L2 error in float32
_MARKS: Final = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "wrong": "[red]wrong[/]"}


def doctor(url: Url = None, as_json: Json = False) -> None:
    """Examine drivers, libraries, folders, port, database and devices, and say what to do about what is wrong."""
    chosen = settings()
    out, err = render.consoles()
    checks = [*doctor_checks.of_host(chosen, url), *_of_devices(chosen, url, err)]
    wrong = [check for check in checks if check.state == "wrong"]
    if as_json:
        render.print_json({"status": "wrong" if wrong else "ok", "checks": checks})
    else:
        out.print(_table(checks))
        out.print(f"{len(wrong)} of {len(checks)} checks failed." if wrong else f"All {len(checks)} checks hold.")
    raise typer.Exit(Exit.FAILED if wrong else Exit.OK)


def _of_devices(chosen: Settings, url: str | None, err: Console) -> Iterator[Check]:
    """Open the devices, or ask the service that has them, and have each make a product."""
    try:
        with session(chosen, url, "tilewise doctor", err) as here, err.status("opening the devices"):
            if isinstance(here, Client):
                yield _service(here)
            found, reasons = here.devices(), here.reasons()
            for reason in reasons:
                yield Check("device", "ok" if found else "wrong", f"not opened: {reason}")
            if not found:
                yield Check("devices", "wrong", "there is none", "mend a reason above, or set TILEWISE_DEVICES")
            for device in found:
                yield _product(here, device)
                yield from _quarantined(device)
                yield from _sensors(here, device)
    except (ClientError, TilewiseError) as error:
        yield Check("devices", "wrong", error.message, "mend that first: nothing was asked of any device")


def _service(here: Client) -> Check:
    found = here.readiness()
    told = f"{found.status} at {here.url}" + "".join(f"; {reason}" for reason in found.reasons)
    if found.status == "ready":
        return Check("service", "ok", told)
    degraded = found.status == "degraded"
    return Check("service", "warning" if degraded else "wrong", told, "its log says more")


def _product(here: Session, device: Device) -> Check:
    """One product by the path that all products take, held against NumPy's in float64."""
    m, n, k = _SHAPE
    source = np.random.default_rng(0)
    a, b = (source.standard_normal(size, dtype=np.float32) for size in ((m, k), (k, n)))
    what = f"{device.name}, {render.units_text(device)}, for {device.architecture}; {device.driver}; {device.compiler}"
    try:
        made = here.multiply(a, b, ProductArguments(device.id))
    except (ClientError, TilewiseError) as error:
        return Check(device.id, "wrong", f"{what}: no product could be made: {error.message}", "see the log")
    off = relative_l2(a, b, made.c)
    how = f"a product of {m}x{n}x{k} by {made.kernel} has an error of {off:.1e}"
    if off <= _TOLERATED:
        return Check(device.id, "ok", f"{what}: {how}")
    return Check(device.id, "wrong", f"{what}: {how}, more than {_TOLERATED:g}", "do not use this device; report it")


def _quarantined(device: Device) -> Iterator[Check]:
    for one in device.quarantined:
        which = f"{one.dtype} ({one.precision})" if one.dtype else "every problem"
        what = f"{one.kernel} for {which} is quarantined since its {one.stage}: {one.reason}"
        yield Check(device.id, "warning", what, "the rung below serves in its place; report it")


def _sensors(here: Session, device: Device) -> Iterator[Check]:
    """What slows a device's clocks now; a service does not tell."""
    read: Any = getattr(here, "sensors", None)
    found = None if read is None else read(device.id)
    if found is None:
        return
    names = {"sm_mhz": "MHz", "memory_mhz": "MHz of memory", "watts": "W", "celsius": "degrees Celsius"}
    figures = [f"{value:.0f} {unit}" for name, unit in names.items() if (value := getattr(found, name)) is not None]
    slowed = ", ".join(found.throttled)
    told = ", ".join(figures) + (f"; lowered by {slowed}" if slowed else "")
    advice = "timings will wander: see to cooling and power limits" if slowed else ""
    yield Check(f"{device.id} clocks", "warning" if slowed else "ok", told, advice)


def _table(checks: list[Check]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("Check", "", "Found", "What to do"):
        table.add_column(name, overflow="fold", no_wrap=name in {"Check", ""})
    for check in checks:
        table.add_row(check.name, _MARKS[check.state], check.found, check.advice)
    return table
