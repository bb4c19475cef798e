"""The formats by name: what a file of each is read as, and by whose words it is named where it does not say so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.errors import InvalidFile
from app.interchange import bundle, kernel_tuner, store_results, t4, table, wisdom
from app.interchange.json_text import decoded, refused
from app.interchange.results import ResultsFile, TuningResults
from kernels.problem import Problem

_SIZES: Final = ("m", "n", "k", "batch")
_OF_FIRST_T4: Final = re.compile(rf'"schema_version"\s*:\s*"{re.escape(t4.FIRST)}"')


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format: its media type, the ending of a file's name, and what it holds."""

    name: str
    media: str
    suffix: str
    holds: str


@dataclass(frozen=True, slots=True)
class FileSubject:
    """What a file's results are of, where the file does not say it; `problem` has some of a problem's members."""

    device: str | None = None
    kernel: str | None = None
    problem: Mapping[str, Any] = field(default_factory=dict)


FORMATS: Final[Mapping[str, FileFormat]] = {
    one.name: one
    for one in (
        FileFormat("bundle", "application/vnd.tilewise.bundle+jsonl", ".bundle.jsonl", "bests and trials, whole"),
        FileFormat("kernel-tuner", "application/json", ".json", "one space, a cache of Kernel Tuner"),
        FileFormat("t4", "application/json", ".t4.json", "one space, in the schema that tuners share"),
        FileFormat("t4-1.0", "application/json", ".t4.json", "one space, in that schema's version 1.0.0"),
        FileFormat("store-results", "application/json", ".results.json", "a kernel's configs near the best"),
        FileFormat("wisdom", "application/x-ndjson", ".wisdom", "a kernel's five best, for Kernel Launcher"),
        FileFormat("csv", "text/csv", ".csv", "trials, a row each"),
        FileFormat("parquet", "application/vnd.apache.parquet", ".parquet", "trials, a row each"),
    )
}


def parse(name: str, data: bytes, subject: FileSubject) -> ResultsFile:
    """Read a file of a format. Raises InvalidFile, and Unsupported where a library is not installed."""
    if name == "bundle":
        return bundle.read(decoded(data))
    found = table.read_parquet(data) if name == "parquet" else _READERS[name](decoded(data), subject)
    try:
        return ResultsFile(tuple(_placed(space, subject) for space in found))
    except InvalidFile:
        raise
    except ValueError as error:
        raise refused(str(error), 1, 1) from error


def write(name: str, file: ResultsFile, generator: str, macros: store_results.Macros) -> Iterator[bytes]:
    """Write a file of a format, or with `header` the C header of these results.

    `generator` is who writes it, `macros` what a config defines for the compiler. Raises ValueError where the format
    cannot hold these results, and Unsupported where a library is not installed.
    """
    if name == "parquet":
        return iter([table.parquet_bytes(file.spaces)])
    about = dict(zip(("autotuner", "autotuner_version"), generator.split(" ", 1), strict=False))
    several: Mapping[str, Callable[[], Iterator[str]]] = {
        "bundle": lambda: bundle.lines(file, generator),
        "store-results": lambda: store_results.lines(file.spaces),
        "header": lambda: store_results.header_lines(file.spaces, macros),
        "wisdom": lambda: wisdom.lines(file.spaces),
        "csv": lambda: table.csv_lines(file.spaces),
        "kernel-tuner": lambda: kernel_tuner.lines(_only(file)),
        "t4": lambda: t4.lines(_only(file), about),
        "t4-1.0": lambda: t4.lines(_only(file), about, t4.FIRST),
    }
    return (line.encode() for line in several[name]())


def _only(file: ResultsFile) -> TuningResults:
    """The one space; raises ValueError where there are several."""
    if len(file.spaces) != 1:
        named = [f"{one.kernel} of {one.problem} on {one.device}" for one in file.spaces]
        raise ValueError(f"the format holds one space, and there are {len(named)}: {'; '.join(named[:8])}")
    return file.spaces[0]


def detected(data: bytes) -> str | None:
    """The format of a file by what it begins with; None for none."""
    if data[:4] == b"PAR1":
        return "parquet"
    head = data[:65536].decode("utf-8-sig", "replace").lstrip()
    if not head.startswith(("{", "#", "//")):
        return "csv" if "config" in head.partition("\n")[0] and "," in head.partition("\n")[0] else None
    marks = {
        f'"{bundle.FORMAT}"': "bundle",
        '"tunable_parameters"': "store-results" if '"kernel_name"' in head else "wisdom",
        '"tune_params_keys"': "kernel-tuner",
        '"schema_version"': "t4",
        '"configuration"': "t4",
    }
    found = next((name for mark, name in marks.items() if mark in head), None)
    return "t4-1.0" if found == "t4" and _OF_FIRST_T4.search(head) else found


def _placed(space: TuningResults, subject: FileSubject) -> TuningResults:
    """A space with what the subject says of it; raises InvalidFile where its problem is not known then."""
    if space.objective != kernel_tuner.TIME and not any(one.samples_ms for one in space.results):
        raise refused(f"the objective is {space.objective}: only times are read", max(space.line, 1), 1)
    named = replace(space, device=subject.device or space.device, kernel=subject.kernel or space.kernel)
    return named if named.problem is not None else replace(named, problem=_problem(named, subject.problem))


def _problem(space: TuningResults, given: Mapping[str, Any]) -> Problem:
    sizes = dict(zip(_SIZES, space.size, strict=False)) if len(space.size) in {3, 4} else {}
    members = sizes | dict(given)
    if not members.keys() >= set(_SIZES[:3]):
        told = f"a size of {list(space.size)}" if space.size else "no size"
        message = f"the file has {told} and does not say which product that is: give m, n and k"
        raise refused(message, max(space.line, 1), 1)
    try:
        return Problem(**members)
    except ValueError as error:
        raise refused(str(error), max(space.line, 1), 1) from error


def _read_t4(text: str, subject: FileSubject) -> list[TuningResults]:
    return [t4.read(text, subject.device or "", subject.kernel or "")]


_READERS: Final[Mapping[str, Callable[[str, FileSubject], list[TuningResults]]]] = {
    "kernel-tuner": lambda text, _: [kernel_tuner.read(text)],
    "t4": _read_t4,
    "t4-1.0": _read_t4,
    "store-results": lambda text, _: store_results.read(text),
    "wisdom": lambda text, _: wisdom.read(text),
    "csv": lambda text, _: table.read_csv(text),
}
