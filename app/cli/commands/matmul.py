"""tilewise matmul."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Final

import typer

from app.cli import matrices, render
from app.cli.figures import config_text
from app.cli.options import (
    DeviceId,
    FilesDtype,
    Json,
    KernelName,
    Output,
    Placement,
    Precision,
    Quiet,
    TransA,
    TransB,
    Url,
    Verify,
    operand_file,
    settings,
    usage,
)
from app.cli.session import session
from app.dtypes import Array
from tilewise import Product, ServiceFile
from tilewise.arguments import ProductArguments

_OPERAND: Final = (
    "A .npy file, - for standard input, or service:NAME for one in the service's folder of operands; "
    "three dimensions are a batch."
)


def matmul(
    a: Annotated[Path, typer.Argument(callback=operand_file, metavar="A", help=_OPERAND)],
    b: Annotated[Path, typer.Argument(callback=operand_file, metavar="B", help="The other, of the same dtype.")],
    output: Output,
    trans_a: TransA = False,
    trans_b: TransB = False,
    dtype: FilesDtype = None,
    precision: Precision = "strict",
    kernel: KernelName = None,
    device: DeviceId = None,
    verify: Verify = None,
    placement: Placement = None,
    check: Annotated[bool, typer.Option("--check", help="Say the error against NumPy's float64 product.")] = False,
    url: Url = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Multiply two matrices with the best known config, and say which that was."""
    with usage():
        _check_streams(a, b, output)
        left, right = matrices.named(a, dtype), matrices.named(b, dtype)
        here = _here(left, right, check=check)
        if here is not None:
            matrices.problem(*here, trans_a, trans_b, precision)  # refuses here what no service need be started for
    _, err = render.consoles(quiet=quiet)
    with session(settings(), url, "tilewise matmul", err) as spoken, err.status("multiplying"):
        started = perf_counter()
        how = ProductArguments(device, kernel, precision, trans_a, trans_b, verify, placement)
        made = spoken.multiply(left, right, how)
        seconds = perf_counter() - started
    matrices.save(output, made.c)
    error = matrices.relative_l2(*here, made.c, trans_a, trans_b) if check and here is not None else None
    piped = str(output) == "-"  # then standard output is the product's
    if as_json:
        render.print_json(_facts(made, output, seconds, error), stderr=piped)
    elif not quiet:
        print(_sentence(made, output, seconds, error), file=sys.stderr if piped else sys.stdout)


def _here(left: Array | ServiceFile, right: Array | ServiceFile, *, check: bool) -> tuple[Array, Array] | None:
    """Both operands, unless one is the service's; raises ValueError where that one is to be multiplied here."""
    if not (isinstance(left, ServiceFile) or isinstance(right, ServiceFile)):
        return left, right
    if check:
        raise ValueError("--check multiplies both operands here: it cannot where one is the service's")
    return None


def _check_streams(a: Path, b: Path, output: Path) -> None:
    if str(a) == str(b) == "-":
        raise ValueError("only one of A and B can be standard input")
    if str(output) == "-" and sys.stdout.isatty():
        raise ValueError("a .npy file is binary and standard output is a terminal: give -o a file, or pipe it on")


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
        "devices": made.devices,
        "elapsed_ms": 1e3 * seconds,
        "timing_ms": made.timing_ms,
        "relative_l2": error,
        "certificate": None if made.certificate is None else asdict(made.certificate),
    }


def _sentence(made: Product, output: Path, seconds: float, error: float | None) -> str:
    sizes = " x ".join(map(str, made.c.shape))
    checked = "" if error is None else f" Relative error against float64: {error:.1e}."
    how = f"{made.kernel} {config_text(made.config)}".strip()
    exact = f"{made.match}, {made.instructions}" if made.instructions else made.match
    if made.certificate is not None:
        found = made.certificate
        checked += f" Certified: residual {found.residual:.1e} of {found.bound:.1e}, {found.missed:.0e} missed at most."
    strictly = f" It is {made.precision}: {made.declined}." if made.declined else ""
    return f"{output}: {sizes} {made.c.dtype}, by {how} ({exact}), in {seconds * 1e3:.1f} ms.{strictly}{checked}"
