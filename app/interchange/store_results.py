"""Kernel Tuner's `store_results`: the configs near the best by device and size, and the C header made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.interchange.json_text import JsonText, number_of, object_of, scalar, text_of, texts_of
from app.interchange.kernel_tuner import plain
from app.interchange.results import MOST_RESULTS, OWN, ConfigResult, TuningResults, Value, shown

VERSION: Final = "1.0"
NEAR: Final = 1.03  # times the best's: the configs that are kept
_SIZE: Final = re.compile(r"[1-9][0-9]{0,9}(x[1-9][0-9]{0,9}){0,3}")

Macros = Callable[[TuningResults, ConfigResult], Sequence[tuple[str, str]]]
_Rows = dict[tuple[str, str], list[tuple[ConfigResult, Mapping[str, Any]]]]


def read(text: str) -> list[TuningResults]:
    """Read a file, a space for each device and size; raises InvalidFile."""
    source, header = JsonText(text), dict[str, Any]()
    rows: _Rows | None = None
    for name in source.members():
        if name == "data":
            rows = _rows(source, header)
        else:
            header[name] = source.value()
    source.end()
    source.at = 0
    with source.entry():
        if rows is None:
            raise ValueError("a file of results has a member data")
        if header.get("version_number") != VERSION:
            raise ValueError(f"version_number is {VERSION}, got {shown(header.get('version_number'))}")
        return [_results(header, place, found) for place, found in rows.items()]


def lines(spaces: Sequence[TuningResults]) -> Iterator[str]:
    """Write the configs within 3 % of the best of each space; all are one kernel's. Raises ValueError."""
    first = _alike(spaces)
    header = {
        "version_number": VERSION,
        "kernel_name": first.kernel,
        **{name: value for name, value in first.extra.items() if name == "kernel_string"},
        "objective": first.objective,
        "objective_higher_is_better": False,
        "tunable_parameters": list(first.parameters),
    }
    yield plain(header)[:-1] + ',"data":['
    before = "\n"
    for space in spaces:
        for one in near_best(space):
            yield before + plain(_row(space, one))
            before = ",\n"
    yield "\n]}\n"


def header_lines(spaces: Sequence[TuningResults], macros: Macros) -> Iterator[str]:
    """Write a C header: -DTARGET_device=1 defines that device's most common good config, nothing the default's.

    Where a device has several sizes, -DTARGET_SIZE_1024x1024x1024=1 beside it defines that size's own best.
    `macros` gives what a config defines.
    """
    first = _alike(spaces)
    yield "/* The configs of a tuned kernel. Compile with -DTARGET_<device>=1. */\n#pragma once\n"
    yield f"#ifndef kernel_tuner /* {first.kernel} */\n"
    devices: dict[str, list[TuningResults]] = {}
    for space in spaces:
        devices.setdefault(target(space.device), []).append(space)
    word = "#if"
    for device, own in devices.items():
        for space in own if len(own) > 1 else ():
            if (best := space.best) is not None:
                sized = f"defined(TARGET_{device}) && defined(TARGET_SIZE_{size_text(space)})"
                yield f"\n{word} {sized}\n{_defines(macros(space, best))}"
                word = "#elif"
        yield f"\n{word} defined(TARGET_{device})\n{_defines(macros(*common(own)))}"
        word = "#elif"
    yield f"\n#else\n{_defines(macros(*common(spaces)))}#endif\n\n#endif /* kernel_tuner */\n"


def near_best(space: TuningResults) -> list[ConfigResult]:
    """The configs whose times are within 3 % of the least."""
    measured = [one for one in space.results if one.time_ms is not None]
    least = min((one.time_ms or 0.0 for one in measured), default=0.0)
    return [one for one in measured if (one.time_ms or 0.0) < least * NEAR]


def common(spaces: Sequence[TuningResults]) -> tuple[TuningResults, ConfigResult]:
    """The config that is near the best in most spaces, of those the one with the least sum of times.

    Raises ValueError where none was measured.
    """
    found: dict[tuple[Value, ...], list[tuple[TuningResults, ConfigResult]]] = {}
    for space in spaces:
        for one in near_best(space):
            found.setdefault(one.values, []).append((space, one))
    if not found:
        raise ValueError("no config was measured")
    ranked = sorted(found.values(), key=lambda each: (-len(each), sum(one.time_ms or 0.0 for _, one in each)))
    return ranked[0][0]


def target(device: str) -> str:
    """A device's name as these files have it."""
    return re.sub("[^0-9a-zA-Z]+", "_", device.strip())


def size_text(space: TuningResults) -> str:
    """A space's size as these files have it."""
    return "x".join(map(str, space.size))


def _alike(spaces: Sequence[TuningResults]) -> TuningResults:
    """The first space; raises ValueError where there is none, or where another is of other parameters."""
    if not spaces:
        raise ValueError("there is nothing to be written")
    first = spaces[0]
    if any((one.kernel, one.parameters) != (first.kernel, first.parameters) for one in spaces):
        raise ValueError("the file has one kernel's results: choose a kernel")
    return first


def _defines(macros: Sequence[tuple[str, str]]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in macros)


def _row(space: TuningResults, one: ConfigResult) -> dict[str, Any]:
    row: dict[str, Any] = {
        "device_name": target(space.device),
        "problem_size": size_text(space),
        "tunable_parameters": space.members(one),
        space.objective: one.time_ms,
    }
    own = {"device": space.device, **space.origin()}
    if OWN in one.extra:
        own["result"] = one.extra[OWN]
    return row | {name: value for name, value in one.extra.items() if name != OWN} | {OWN: own}


def _rows(source: JsonText, header: Mapping[str, Any]) -> _Rows:
    found: _Rows = {}
    for count in source.items():
        with source.entry() as line:
            if count >= MOST_RESULTS:
                raise ValueError(f"a file has at most {MOST_RESULTS} configs")
            parameters = texts_of(
                header.get("tunable_parameters"), "tunable_parameters, which has to stand before data,"
            )
            members = object_of(source.value(), "a row of data")
            place = text_of(members, "device_name"), text_of(members, "problem_size")
            if not _SIZE.fullmatch(place[1]):
                raise ValueError(f"problem_size is a text such as 1024x1024, got {shown(place[1])}")
            found.setdefault(place, []).append(_result(members, parameters, text_of(header, "objective"), line))
    return found


def _result(
    members: dict[str, Any], parameters: tuple[str, ...], objective: str, line: int
) -> tuple[ConfigResult, Mapping[str, Any]]:
    given = object_of(members.get("tunable_parameters"), "tunable_parameters")
    if missing := [name for name in parameters if name not in given]:
        raise ValueError(f"the row has no {shown(missing[0])}")
    own = dict(object_of(members.get(OWN, {}), OWN))
    result = own.pop("result", None)
    known = {"device_name", "problem_size", "tunable_parameters", objective, OWN}
    extra = {name: value for name, value in members.items() if name not in known}
    extra |= {OWN: object_of(result, "result")} if result is not None else {}
    values = tuple(scalar(given[name], name) for name in parameters)
    return ConfigResult(values, number_of(members, objective), (), extra=extra, line=line), own


def _results(
    header: Mapping[str, Any], place: tuple[str, str], rows: list[tuple[ConfigResult, Mapping[str, Any]]]
) -> TuningResults:
    own = dict(rows[0][1])
    device = own.pop("device", place[0])
    if not isinstance(device, str):
        raise ValueError("a device's name is a text")
    string = {name: value for name, value in header.items() if name == "kernel_string"}
    found = TuningResults(
        device=device,
        kernel=text_of(header, "kernel_name"),
        parameters=texts_of(header["tunable_parameters"], "tunable_parameters"),
        results=tuple(one for one, _ in rows),
        size=tuple(map(int, place[1].split("x"))),
        objective=text_of(header, "objective"),
        extra=string,
        line=rows[0][0].line,
    )
    return found.with_origin(own)
