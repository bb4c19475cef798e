"""Trials as a table, a config a row: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from app.errors import InvalidFile, Unsupported
from app.interchange.json_text import JsonText, canonical, number_of, numbers_of, object_of, refused, scalar
from app.interchange.results import MOST_RESULTS, OWN, ConfigResult, TuningResults, shown

COLUMNS: Final = (
    *("device", "kernel", "problem", "size", "config", "objective", "time_ms", "samples_ms", "failure", "reason"),
    *("digest", "environment", "policy", "extra"),
)
_TEXTS: Final = ("device", "kernel", "objective", "problem", "failure", "reason", "digest", "environment", "policy")
_PLACE: Final = ("device", "kernel", "problem", "size", "objective", "digest", "environment", "policy")
_MOST_BYTES: Final = 2**28  # of a Parquet file's columns, unpacked
_NEEDED: Final = "Parquet needs the extra formats: pip install 'tilewise[formats]'"

_Row = dict[str, str | None]


def read_csv(text: str) -> list[TuningResults]:
    """Read a table whose first line names its columns; raises InvalidFile."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows, [])
        _check_columns(header)
        return _spaces(_csv_rows(rows, header))
    except csv.Error as error:
        raise refused(f"this is no CSV: {error}", max(rows.line_num, 1), 1) from error


def csv_lines(spaces: Iterable[TuningResults]) -> Iterator[str]:
    """Write a table as CSV (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out)
    header: _Row = dict(zip(COLUMNS, COLUMNS, strict=True))
    for row in chain([header], (row for space in spaces for row in rows_of(space))):
        writer.writerow([row[name] for name in COLUMNS])
        yield out.getvalue()
        out.seek(0)
        out.truncate()


def read_parquet(data: bytes) -> list[TuningResults]:
    """Read a table; raises InvalidFile, and Unsupported where pyarrow is not installed."""
    arrow, parquet = _arrow()
    try:
        limits = {"thrift_string_size_limit": 2**20, "thrift_container_size_limit": 2**16}
        file = parquet.ParquetFile(io.BytesIO(data), **limits)
        _check_columns(file.schema_arrow.names)
        sizes = [file.metadata.row_group(place).total_byte_size for place in range(file.metadata.num_row_groups)]
        if file.metadata.num_rows > MOST_RESULTS or sum(sizes) > _MOST_BYTES:
            raise refused(f"a file has at most {MOST_RESULTS} rows in {_MOST_BYTES} bytes", 1, 1)
        if any(not arrow.types.is_string(kind) for kind in file.schema_arrow.types):
            raise refused("every column is of texts", 1, 1)
        return _spaces(enumerate(file.read().to_pylist(), 1))
    except (arrow.ArrowException, OSError, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise refused(f"this is no Parquet: {str(error)[:200]}", 1, 1) from error


def parquet_bytes(spaces: Iterable[TuningResults]) -> bytes:
    """Write a table as Parquet, every column of texts as in CSV; raises Unsupported where pyarrow is not installed."""
    arrow, parquet = _arrow()
    rows = [row for space in spaces for row in rows_of(space)]
    columns = {name: arrow.array([row[name] for row in rows], arrow.string()) for name in COLUMNS}
    out = io.BytesIO()
    parquet.write_table(arrow.table(columns), out)
    return out.getvalue()


def rows_of(space: TuningResults) -> Iterator[_Row]:
    """A space's configs as rows; what is not a text is JSON."""
    place = {name: getattr(space, name) for name in _PLACE if name not in {"problem", "size"}}
    place["problem"] = None if space.problem is None else space.problem.key
    place["size"] = "x".join(map(str, space.size))
    for one in space.results:
        yield {
            **place,
            "config": _text(space.members(one), ordered=True),
            "time_ms": None if one.time_ms is None else repr(one.time_ms),
            "samples_ms": _text(list(one.samples_ms)) if one.samples_ms else None,
            "failure": one.failure,
            "reason": one.reason,
            "extra": _text(dict(one.extra)) if one.extra else None,
        }


def _text(value: object, *, ordered: bool = False) -> str:
    if ordered and isinstance(value, dict):
        return "{" + ",".join(f"{canonical(name)}:{canonical(each)}" for name, each in value.items()) + "}"
    return canonical(value)


def _check_columns(names: Sequence[str]) -> None:
    """Raise InvalidFile unless these are the table's columns, in any order."""
    if unknown := [name for name in names if name not in COLUMNS]:
        raise refused(f"there is no column {shown(unknown[0])}: there are {', '.join(COLUMNS)}", 1, 1)
    if missing := [name for name in ("device", "kernel", "config") if name not in names]:
        raise refused(f"the table has no column {missing[0]}", 1, 1)
    if len(set(names)) < len(names):
        raise refused("a column is there twice", 1, 1)


def _csv_rows(rows: Any, header: Sequence[str]) -> Iterator[tuple[int, _Row]]:
    line = rows.line_num + 1
    for cells in rows:
        if cells and len(cells) != len(header):
            raise refused(f"the row has {len(cells)} cells, the table {len(header)} columns", line, 1)
        if cells:
            yield line, {name: cell or None for name, cell in zip(header, cells, strict=True)}
        line = rows.line_num + 1


def _spaces(rows: Iterable[tuple[int, Mapping[str, str | None]]]) -> list[TuningResults]:
    """The rows by space, in the order of the spaces' first rows."""
    found: dict[tuple[str | None, ...], tuple[TuningResults, list[ConfigResult]]] = {}
    for count, (line, row) in enumerate(rows):
        if count >= MOST_RESULTS:
            raise refused(f"a file has at most {MOST_RESULTS} configs", line, 1)
        try:
            members = object_of(_json(row, "config", line), "config")
            result = _result(row, members, line)
            place = (*(row.get(name) for name in _PLACE), *members)
            if place not in found:
                found[place] = _space(row, tuple(members), line), []
        except InvalidFile:
            raise
        except ValueError as error:
            raise refused(str(error), line, 1) from error
        found[place][1].append(result)
    return [replace(space, results=tuple(results)) for space, results in found.values()]


def _space(row: Mapping[str, str | None], parameters: tuple[str, ...], line: int) -> TuningResults:
    sizes = (row.get("size") or "").split("x") if row.get("size") else []
    if not all(one.isascii() and one.isdecimal() and 0 < int(one[:11]) < 2**31 for one in sizes):
        raise ValueError(f"size is a text such as 512x512x512, got {shown(row.get('size'))}")
    space = TuningResults(
        row.get("device") or "",
        row.get("kernel") or "",
        parameters,
        (),
        size=tuple(map(int, sizes)),
        objective=row.get("objective") or "time",
        line=line,
    )
    told = {name: row[name] for name in ("problem", "digest", "environment", "policy") if row.get(name)}
    return space.with_origin(told)


def _result(row: Mapping[str, str | None], members: dict[str, Any], line: int) -> ConfigResult:
    time = row.get("time_ms")
    extra = object_of(_json(row, "extra", line) if row.get("extra") else {}, "extra")
    if OWN in extra:
        object_of(extra[OWN], OWN)
    return ConfigResult(
        tuple(scalar(value, name) for name, value in members.items()),
        None if time is None else number_of({"time_ms": _json(row, "time_ms", line)}, "time_ms"),
        numbers_of(_json(row, "samples_ms", line) if row.get("samples_ms") else None, "samples_ms"),
        row.get("failure"),
        row.get("reason"),
        extra,
        line,
    )


def _json(row: Mapping[str, str | None], name: str, line: int) -> Any:
    """A cell that is JSON; its column in a refusal is that of its own text."""
    source = JsonText(row.get(name) or "", line)
    value = source.value()
    source.end()
    return value


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise Unsupported(_NEEDED) from error
    return pa, parquet
