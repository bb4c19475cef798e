"""tilewise devices, kernels and analyse."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from app.cli import render
from app.cli.figures import config_text
from app.cli.options import SHAPE, Batch, DeviceId, Dtype, Json, Url, settings, shape_of, usage
from app.cli.session import open_for_devices, session
from tilewise import Analysis, Problem


def devices(url: Url = None, as_json: Json = False) -> None:
    """List the devices, and say why there are no others."""
    out, err = render.consoles()
    with session(settings(), url, "tilewise devices", err) as here:
        found, reasons = here.devices(), here.reasons()
        if not found:
            here.best(Problem(1, 1, 1))  # refused, with the reasons why there is no device
    if as_json:
        render.print_json(found)
    else:
        out.print(render.device_table(found))
    for reason in reasons:
        err.print(f"not opened: {reason}", soft_wrap=True)


def kernels(url: Url = None, as_json: Json = False) -> None:
    """List the kernels: what each computes on which architectures, and by which instructions."""
    chosen = settings()
    if url:
        with session(chosen, url, "tilewise kernels", render.consoles()[1]) as here:
            found = here.kernels()
    else:
        from app.cli.local_session import ladder  # noqa: PLC0415 - the other commands need not load the whole service

        found = ladder()
    if as_json:
        render.print_json(found)
    else:
        render.consoles()[0].print(render.kernel_table(found))


def analyse(
    shape: Annotated[list[str], typer.Argument(metavar="SHAPE", help=f"{SHAPE}.")],
    tile: Annotated[int, typer.Option(min=1, max=4096, help="The tile's side; any will do, legal or not.")] = 16,
    kernel: Annotated[str, typer.Option(help="Whose memory traffic: tiled or naive.")] = "tiled",
    batch: Batch = None,
    dtype: Dtype = "float32",
    device: DeviceId = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Work out what a square tile costs: bytes, operations, intensity, blocks, edge tiles, occupancy."""
    with usage():
        wanted = shape_of(shape, batch)
        if kernel not in {"tiled", "naive"}:
            raise ValueError(f"a kernel is tiled or naive here, got {kernel!r}")
    out, err = render.consoles()
    chosen = settings()
    with open_for_devices(chosen, url, "tilewise analyse", err) as here:
        found = here.tile_cost(Problem(**asdict(wanted), dtype=dtype), tile, kernel, device=device)
    if as_json:
        render.print_json(found)
    else:
        out.print(_analysis_table(found))


def _analysis_table(found: Analysis) -> Table:
    """One launch, a fact a line."""
    wasted = found.flops_launched / found.flops_owned - 1 if found.flops_owned else 0.0
    facts = {
        "problem": str(found.problem),
        "device": found.device,
        "kernel": f"{found.kernel} {config_text(found.config)}",
        "read": f"{found.bytes_read:,} bytes of global memory",
        "written": f"{found.bytes_written:,} bytes",
        "operations": f"{found.flops_owned:,}, and {wasted:.0%} more by threads beyond C",
        "intensity": f"{found.intensity:.3g} operations a byte that is read",
        "blocks": f"{found.blocks:,} ({found.tiles_m} x {found.tiles_n} tiles), {found.edge_tiles:,} at an edge",
        "a block": f"{found.threads:,} threads, {found.shared_bytes:,} shared bytes",
    }
    if found.occupancy is not None:
        held = found.occupancy
        share = f"{held.fraction:.0%} of the threads, limited by {held.limited_by}"
        facts["occupancy"] = f"{held.blocks_per_sm} blocks on an SM, {share}"
    if found.waves is not None:
        facts["waves"] = f"{found.waves:.3g}"
    return render.fact_table(facts)
