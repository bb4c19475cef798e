"""Kernel Launcher's wisdom 1.0: a header, then one record a line; lines that begin with # or // are comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.interchange.json_text import JsonText, number_of, object_of, scalar, text_of, texts_of
from app.interchange.kernel_tuner import plain
from app.interchange.results import MOST_RESULTS, OWN, ConfigResult, TuningResults, shown

VERSION: Final = "1.0"
BEST: Final = 5  # records kept of each size and device

_Record = tuple[ConfigResult, str, tuple[int, ...], Mapping[str, Any]]


def read(text: str) -> list[TuningResults]:
    """Read a wisdom file, a space for each device and size; raises InvalidFile."""
    header: dict[str, Any] | None = None
    found: dict[tuple[str, tuple[int, ...]], list[_Record]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith(("#", "//")):
            continue
        source = JsonText(line, number)
        with source.entry():
            members = object_of(source.value(), "a line")
            source.end()
            if header is None:
                header = _checked(members)
                continue
            if number > MOST_RESULTS:
                raise ValueError(f"a file has at most {MOST_RESULTS} configs")
            record = _record(header, members, number)
            found.setdefault(record[1:3], []).append(record)
    if header is None:
        raise JsonText(text).refusal_of(1, "the file has no header")
    with JsonText(text).entry():
        return [_results(header, place, records) for place, records in found.items()]


def lines(spaces: Sequence[TuningResults]) -> Iterator[str]:
    """Write the best five of each space; all are one kernel's. Raises ValueError."""
    if not spaces:
        raise ValueError("there is nothing to be written")
    first = spaces[0]
    if any((one.kernel, one.parameters) != (first.kernel, first.parameters) for one in spaces):
        raise ValueError("the file has one kernel's results: choose a kernel")
    header = {
        "version": VERSION,
        "objective": first.objective,
        "tunable_parameters": list(first.parameters),
        "key": first.kernel,
    }
    yield plain(header) + "\n"
    for space in spaces:
        measured = [one for one in space.results if one.time_ms is not None]
        for one in sorted(measured, key=lambda each: each.time_ms or 0.0)[:BEST]:
            yield plain(_line(space, one)) + "\n"


def _checked(members: dict[str, Any]) -> dict[str, Any]:
    """The header; raises ValueError if it is none."""
    if members.get("version") != VERSION:
        raise ValueError(f"version is {VERSION}, got {shown(members.get('version'))}")
    text_of(members, "key")
    text_of(members, "objective")
    texts_of(members.get("tunable_parameters"), "tunable_parameters")
    return members


def _record(header: Mapping[str, Any], members: dict[str, Any], line: int) -> _Record:
    values, size = members.get("config"), members.get("problem_size")
    if not isinstance(values, list) or len(values) != len(header["tunable_parameters"]):
        raise ValueError("config is a list with a value for each of tunable_parameters")
    if not isinstance(size, list) or not all(type(one) is int and 0 < one < 2**31 for one in size):
        raise ValueError(f"problem_size is a list of integers, got {shown(size)}")
    environment = object_of(members.get("environment"), "environment")
    objective = header["objective"]
    known = {"config", "problem_size", objective, "environment", OWN}
    extra = {name: value for name, value in members.items() if name not in known}
    own = dict(object_of(members.get(OWN, {}), OWN))
    result = own.pop("result", None)
    extra |= {OWN: object_of(result, "result")} if result is not None else {}
    rest = {name: value for name, value in environment.items() if name != "device_name"}
    extra |= {"environment": rest} if rest else {}
    told = tuple(scalar(value, "config") for value in values)
    found = ConfigResult(told, number_of(members, objective), (), extra=extra, line=line)
    return found, text_of(environment, "device_name"), tuple(size), own


def _results(header: Mapping[str, Any], place: tuple[str, tuple[int, ...]], records: list[_Record]) -> TuningResults:
    found = TuningResults(
        device=place[0],
        kernel=header["key"],
        parameters=tuple(header["tunable_parameters"]),
        results=tuple(record[0] for record in records),
        size=place[1],
        objective=header["objective"],
        line=records[0][0].line,
    )
    return found.with_origin(dict(records[0][3]))


def _line(space: TuningResults, one: ConfigResult) -> dict[str, Any]:
    extra = dict(one.extra)
    environment = extra.pop("environment", {})
    own: dict[str, Any] = space.origin()
    if OWN in extra:
        own["result"] = extra.pop(OWN)
    return {
        "config": list(one.values),
        "problem_size": list(space.size),
        space.objective: _whole(one.time_ms),
        "environment": {"device_name": space.device, **environment},
        **extra,
        **({OWN: own} if own else {}),
    }


def _whole(value: float | None) -> float | int | None:
    """A number as these files have it: one without a fraction is an integer."""
    return int(value) if value is not None and value.is_integer() else value
