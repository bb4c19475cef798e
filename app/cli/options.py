"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="TILEWISE_URL", help="A running service; without it everything is opened here."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a script.")]
Dtype = Annotated[str, typer.Option(help="float32, float64, float16 or bfloat16.")]
Precision = Annotated[str, typer.Option(help="The precision class.")]
TransA = Annotated[bool, typer.Option("--trans-a", help="A is stored as its transpose, K x M.")]
TransB = Annotated[bool, typer.Option("--trans-b", help="B is stored as its transpose, N x K.")]
Batch = Annotated[int, typer.Option(min=1, help="How many independent pairs of matrices.")]
Gain = Annotated[
    float | None,
    typer.Option(
        min=0.01, max=99, help="Until the expected gain is below so many per cent; no other limit by default."
    ),
]
DeviceId = Annotated[str | None, typer.Option("--device", help="A device's id, such as cuda:0 or opencl:0.")]


@contextmanager
def usage() -> Iterator[None]:
    """Take a ValueError about what was typed for wrong usage."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def examples(*lines: str) -> str:
    """Write a help's end: command lines to copy, each on a line of its own."""
    return "\n\n".join((f"Example{'s' if len(lines) > 1 else ''}:", *lines))
