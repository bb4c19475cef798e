"""tilewise matmul."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from app.cli import matrices, show
from app.cli.options import DeviceId, Json, Precision, TransA, TransB, Url, usage
from app.cli.session import session
from app.client import Product
from app.client.matrices import operand, problem
from app.settings import Settings


def matmul(
    a: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, metavar="A", help="A .npy file; three dimensions are a batch."),
    ],
    b: Annotated[Path, typer.Argument(exists=True, dir_okay=False, metavar="B", help="The other, of the same dtype.")],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="Where the product's .npy goes.")],
    trans_a: TransA = False,
    trans_b: TransB = False,
    dtype: Annotated[
        str | None, typer.Option(help="Needed for bfloat16, which .npy files do not name; others have to agree.")
    ] = None,
    precision: Precision = "strict",
    kernel: Annotated[str | None, typer.Option(help="Force one: naive, tiled, ..., vendor.")] = None,
    device: DeviceId = None,
    check: Annotated[bool, typer.Option("--check", help="Say the error against NumPy's float64 product.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Multiply two matrices with the best known config, and say which that was."""
    with usage():
        left, right = operand(matrices.load(a, dtype)), operand(matrices.load(b, dtype))
        problem(left, right, trans_a, trans_b, precision)  # refuses here what no service need be started for
    _, err = show.consoles()
    with session(Settings(), url, "tilewise matmul", err) as here, err.status("multiplying"):
        started = perf_counter()
        made = here.product(left, right, trans_a, trans_b, device, kernel, precision)
        seconds = perf_counter() - started
    matrices.save(output, made.c)
    error = matrices.relative_l2(left, right, made.c, trans_a, trans_b) if check else None
    if as_json:
        show.print_json(_facts(made, output, seconds, error))
    else:
        print(_sentence(made, output, seconds, error))


def _facts(made: Product, output: Path, seconds: float, error: float | None) -> dict[str, object]:
    return {
        "output": str(output),
        "shape": made.c.shape,
        "dtype": made.c.dtype.name,
        "kernel": made.kernel,
        "config": made.config,
        "match": made.match,
        "instructions": made.instructions,
        "precision": made.precision,
        "declined": made.declined,
        "device": made.device,
        "seconds": seconds,
        "timing_ms": made.timing,
        "relative_l2": error,
    }


def _sentence(made: Product, output: Path, seconds: float, error: float | None) -> str:
    sizes = " x ".join(map(str, made.c.shape))
    checked = "" if error is None else f" Relative error against float64: {error:.1e}."
    how = f"{made.kernel} {show.config_text(made.config)}".strip()
    exact = f"{made.match}, {made.instructions}" if made.instructions else made.match
    strictly = f" It is {made.precision}: {made.declined}." if made.declined else ""
    return f"{output}: {sizes} {made.c.dtype}, by {how} ({exact}), in {seconds * 1e3:.1f} ms.{strictly}{checked}"
