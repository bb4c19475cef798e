"""Options shared by commands, and shapes as a person types them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from app.settings import Settings
from kernels.problem import LARGEST, PRECISIONS, parse_dtype
from tilewise import Shape

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="TILEWISE_URL", help="A running service; without it everything is opened here."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no hints.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a script.")]
SERVICE: Final = "service:"  # before the name of an operand that is a file in the service's folder
STRATEGIES: Final = ("auto", "exhaustive", "genetic", "random", "known")
SHAPE: Final = "512 (a cube), 512x512x512, 4096x16x4096 x 8 (a batch of 8), or M N K"


@contextmanager
def usage() -> Iterator[None]:
    """Take a ValueError about what was typed for wrong usage."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _dtype(text: str | None) -> str | None:
    with usage():
        return None if text is None else parse_dtype(text)


def _one_of(what: str, names: Sequence[str], text: str) -> str:
    """Give a name that is one of several; raises BadParameter with the nearest."""
    if text in names:
        return text
    near = get_close_matches(text, names, 1)
    meant = f", did you mean {near[0]}?" if near else ""
    raise typer.BadParameter(f"{what} is one of {', '.join(names)}, got {text!r}{meant}")


def _precision(text: str) -> str:
    return _one_of("a precision", PRECISIONS, text)


def _strategy(text: str) -> str:
    return _one_of("a strategy", STRATEGIES, text)


def _catalogue() -> tuple[str, ...]:
    from kernels import CATALOGUE  # noqa: PLC0415 - only a command that is given a kernel needs them

    return tuple(CATALOGUE)


def _with_lessons() -> tuple[str, ...]:
    from kernels import KERNELS  # noqa: PLC0415 - only a command that is given kernels needs them

    return tuple(KERNELS)


def _kernels(text: str | None) -> str | None:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    return ",".join(_one_of("a kernel", _with_lessons(), name) for name in names) or None


def _kernel(text: str | None) -> str | None:
    return None if text is None else _one_of("a kernel", (*_catalogue(), "vendor"), text.strip())


def readable(path: Path) -> Path:
    """Give a file that is there, or - for standard input; raises BadParameter."""
    if str(path) != "-" and not path.is_file():
        raise typer.BadParameter(f"there is no file {path}" if not path.exists() else f"{path} is no file")
    return path


def operand_file(path: Path) -> Path:
    """As readable, or a name of the service's own file after `service:`."""
    return path if str(path).startswith(SERVICE) else readable(path)


def writable(path: Path | None) -> Path | None:
    """Give a file that can be written, or - for standard output; raises BadParameter if its folder is none."""
    if path is None or str(path) == "-":
        return path
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.absolute().parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written")
    return path


def settings() -> Settings:
    """Read the settings; a variable that is none of them is told of on standard error."""
    known = [f"TILEWISE_{name.upper()}" for name in Settings.model_fields]
    for name in sorted(os.environ):
        if name.startswith("TILEWISE_") and name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            print(f"Warning: there is no setting {name}{meant}", file=sys.stderr)
    return Settings()


Dtype = Annotated[
    str, typer.Option(callback=_dtype, help="float32, float64, float16 or bfloat16, or fp32, double, half, bf16, ...")
]
DtypeFilter = Annotated[str | None, typer.Option("--dtype", callback=_dtype, help="Only problems of this dtype.")]
FilesDtype = Annotated[
    str | None,
    typer.Option(callback=_dtype, help="Needed for bfloat16, which .npy files do not name; others have to agree."),
]
Precision = Annotated[str, typer.Option(callback=_precision, help="strict, emulated or tf32.")]
TransA = Annotated[bool, typer.Option("--trans-a", help="A is stored as its transpose, K x M.")]
TransB = Annotated[bool, typer.Option("--trans-b", help="B is stored as its transpose, N x K.")]
Batch = Annotated[
    int | None, typer.Option(min=1, max=LARGEST, help="How many independent pairs of matrices; by default the shape's.")
]
Match = Annotated[Literal["exact"] | None, typer.Option(help="exact: exit 3 where this very problem was never tuned.")]
GainPercent = Annotated[
    float | None,
    typer.Option(
        min=0.01, max=99, help="Until the expected gain is below so many per cent; no other limit by default."
    ),
]
Strategy = Annotated[str, typer.Option(callback=_strategy, help=f"{', '.join(STRATEGIES)}.")]
Kernels = Annotated[str | None, typer.Option(callback=_kernels, help="Only these, with commas; by default every one.")]
KernelName = Annotated[
    str | None, typer.Option("--kernel", callback=_kernel, help="Force one: naive, tiled, ..., vendor.")
]
Verify = Annotated[
    Literal["freivalds"] | None,
    typer.Option(help="freivalds: certify the product by random vectors before it is answered."),
]
Placement = Annotated[
    Literal["auto", "one", "all"] | None,
    typer.Option(help="The devices that make it: one, all in tiles, or auto, all where that pays."),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", dir_okay=False, allow_dash=True, callback=writable, help="The file; - is standard output."
    ),
]
DeviceId = Annotated[str | None, typer.Option("--device", help="A device's id, such as cuda:0 or opencl:0.")]


def examples(*lines: str) -> str:
    """Write a help's end: command lines to copy, each on a line of its own."""
    return "\n\n".join((f"Example{'s' if len(lines) > 1 else ''}:", *lines))


_TIMES: Final = "x\u00d7X"  # what stands between two sizes, however many blanks are around it


def shapes_of(words: Sequence[str], batch: int | None = None) -> list[Shape]:
    """Read words such as 512 (a cube), 512x512x512, 4096x16x4096 x 8, and sizes M N K in threes.

    `batch` is that of every shape that does not tell its own. Raises ValueError for what is no shape.
    """
    shapes: list[Shape] = []
    for sizes, group in groupby(_joined(" ".join(words)).split(), str.isdecimal):
        together = list(group)
        if sizes and len(together) > 1:
            together = _threes(together)
        shapes += map(Shape.parse, together)
    return [_batched(shape, batch) for shape in shapes]


def _joined(text: str) -> str:
    """The text with nothing but an x between the sizes of one shape."""
    for sign in _TIMES:
        text = "x".join(part.strip() for part in text.split(sign))
    return text


def shape_of(words: Sequence[str], batch: int | None = None) -> Shape:
    """Read the one shape that the words say; raises ValueError if they say none or several."""
    shapes = shapes_of(words, batch)
    if len(shapes) != 1:
        raise ValueError(f"one shape was expected, got {len(shapes)}: {' '.join(words)}")
    return shapes[0]


def _threes(sizes: list[str]) -> list[str]:
    if len(sizes) % 3:
        raise ValueError(f"sizes come in threes, M N K, got {len(sizes)}; a shape is 512x512x512, or 512 for a cube")
    return ["x".join(sizes[start : start + 3]) for start in range(0, len(sizes), 3)]


def _batched(shape: Shape, batch: int | None) -> Shape:
    if batch is None:
        return shape
    if shape.batch not in {1, batch}:
        raise ValueError(f"the shape {shape} has a batch of {shape.batch}, and --batch is {batch}")
    return replace(shape, batch=batch)
