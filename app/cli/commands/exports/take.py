"""tilewise take."""

from __future__ import annotations

import io
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli import render
from app.cli.options import (
    SHAPE,
    Batch,
    DeviceId,
    Dtype,
    KernelName,
    Precision,
    Quiet,
    TransA,
    TransB,
    Url,
    settings,
    shape_of,
    usage,
)
from app.cli.session import session
from app.exports.targets import TARGETS
from tilewise import Problem
from tilewise.arguments import ExportArguments


def take(
    shape: Annotated[list[str], typer.Argument(metavar="SHAPE", help=f"{SHAPE}.")],
    target: Annotated[str, typer.Option("--as", metavar="TARGET", help=f"One of {', '.join(TARGETS)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="A folder, new or empty.")],
    batch: Batch = None,
    dtype: Dtype = "float32",
    precision: Precision = "strict",
    trans_a: TransA = False,
    trans_b: TransB = False,
    kernel: KernelName = None,
    config: Annotated[
        str | None, typer.Option(help="With --kernel: BM=16,BN=16,BK=16; by default its untuned config.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="For a GPU that is not here: sm_80, sm_86, sm_89 or sm_90.")] = None,
    device: DeviceId = None,
    url: Url = None,
    quiet: Quiet = False,
) -> None:
    """Write the winner of a problem as files that build and run elsewhere, with a check and its launch as data."""
    with usage():
        wanted = shape_of(shape, batch)
        values = None if config is None else _values(config)
        if target not in TARGETS:
            raise ValueError(f"a target is one of {', '.join(TARGETS)}, got {target}")
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise ValueError(f"{output} is there already: a folder that is new or empty was expected")
    problem = Problem(**asdict(wanted), dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b)
    err = render.consoles(quiet=quiet)[1]
    with session(settings(), url, "tilewise take", err) as here:
        data = here.export_winner(ExportArguments(problem, target, device, arch, kernel, values))
    names = _written(data, output)
    err.print(f"{output} holds {', '.join(names)}.", soft_wrap=True)


def _values(text: str) -> dict[str, int]:
    """The parameters of a config; raises ValueError."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and value.isdecimal() for name, _, value in pairs):
        raise ValueError(f"a config is NAME=NUMBER with commas, such as BM=16,BN=16, got {text}")
    return {name.strip(): int(value) for name, _, value in pairs}


def _written(data: bytes, folder: Path) -> list[str]:
    """Write the zip's files into a folder, each by the last part of its name alone; give their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.namelist():
            name = Path(member).name
            (folder / name).write_bytes(archive.read(member))
            names.append(name)
    return names
