"""T4, the results schema that auto-tuners share: 1.0.0 and 1.1.0 are read and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.interchange.json_text import JsonText, number_of, numbers_of, object_of, scalar, text_of
from app.interchange.kernel_tuner import TIME, plain
from app.interchange.results import MOST_RESULTS, OWN, ConfigResult, TuningResults, Value, shown

FIRST: Final = "1.0.0"
NEWEST: Final = "1.1.0"
_VERSIONS: Final = (FIRST, NEWEST)
_RIGHT: Final = "correct"
_UNITS: Final = {"nanoseconds": 1e-6, "microseconds": 1e-3, "milliseconds": 1.0, "seconds": 1e3}
_SHORT: Final = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
# Kernel Tuner's names of seconds, and the members of `times`. The schema calls the first compilation_time; Kernel Tuner
# and autotuning_methodology, which reads no other, call it compilation.
_TIMES: Final = {
    "compile_time": "compilation_time",
    "benchmark_time": "benchmark",
    "framework_time": "framework",
    "strategy_time": "search_algorithm",
    "verification_time": "validation",
}
_COMPILATION: Final = "compilation"
_READ: Final = {member: name for name, member in _TIMES.items()} | {_COMPILATION: "compile_time"}


def read(text: str, device: str, kernel: str) -> TuningResults:
    """Read a results file; `device` and `kernel` are whose results these are where it does not say so.

    Raises InvalidFile.
    """
    source, header = JsonText(text), dict[str, Any]()
    rows: list[tuple[int, dict[str, Any]]] | None = None
    for name in source.members():
        if name == "results":
            rows = list(_rows(source))
        else:
            header[name] = source.value()
    source.end()
    source.at = 0
    with source.entry():
        if rows is None:
            raise ValueError("a T4 file has a member results")
        if (version := header.get("schema_version")) not in _VERSIONS:
            raise ValueError(f"schema_version is {' or '.join(_VERSIONS)}, got {shown(version)}")
        return _results(source, header, rows, device, kernel)


def lines(results: TuningResults, metadata: Mapping[str, Any], version: str = NEWEST) -> Iterator[str]:
    """Write a results file of a version of the schema; `metadata` are members of its metadata, such as compute_api.

    What 1.1.0 defines beyond 1.0.0 is written into both: a file of 1.0.0 may have further members.
    """
    told = {"timeunit": "milliseconds", "device": results.device, **metadata, **results.extra.get("metadata", {})}
    own = {"kernel": results.kernel, "size": list(results.size), **results.origin()}
    rest = {name: value for name, value in results.extra.items() if name not in {"metadata", "problem_size"}}
    head = {"schema_version": version, "metadata": told | {"timeunit": "milliseconds"}, OWN: own, **rest}
    yield plain(head)[:-1] + ',"results":['
    before = "\n"
    for one in results.results:
        yield before + plain(_row(results, one))
        before = ",\n"
    yield "\n]}\n"


def _rows(source: JsonText) -> Iterator[tuple[int, dict[str, Any]]]:
    for count in source.items():
        with source.entry() as line:
            if count >= MOST_RESULTS:
                raise ValueError(f"a file has at most {MOST_RESULTS} configs")
            yield line, object_of(source.value(), "a result")


def _results(
    source: JsonText, header: dict[str, Any], rows: list[tuple[int, dict[str, Any]]], device: str, kernel: str
) -> TuningResults:
    metadata = object_of(header.get("metadata", {}), "metadata")
    unit = text_of(metadata, "timeunit", "milliseconds")
    if unit not in _UNITS:
        raise ValueError(f"timeunit is one of {', '.join(_UNITS)}, got {shown(unit)}")
    own = dict(object_of(header.get(OWN, {}), OWN))
    size, kernel = own.pop("size", []), own.pop("kernel", kernel)
    if not isinstance(size, list) or not all(type(one) is int for one in size) or not isinstance(kernel, str):
        raise ValueError(f"the member {OWN} has a kernel's name, and a size in integers")
    if not rows:
        raise ValueError("the file has no results")
    device = text_of(metadata, "device", device)
    if not device or not kernel:
        raise ValueError("the file does not say of which device and kernel its results are: give device and kernel")
    parameters = tuple(object_of(rows[0][1].get("configuration"), "configuration"))
    objective = _objective(rows[0][1])
    found = [_located(source, line, members, parameters, _UNITS[unit]) for line, members in rows]
    rest = {name: value for name, value in metadata.items() if name not in {"timeunit", "device"}}
    extra = {name: value for name, value in header.items() if name not in {"metadata", "schema_version", OWN}}
    told = TuningResults(
        device=device,
        kernel=kernel,
        parameters=parameters,
        results=tuple(found),
        size=tuple(size),
        objective=objective,
        extra=extra | ({"metadata": rest} if rest else {}),
    )
    return told.with_origin(own)


def _located(
    source: JsonText, line: int, members: dict[str, Any], parameters: tuple[str, ...], unit: float
) -> ConfigResult:
    try:
        return _result(members, parameters, unit, line)
    except ValueError as error:
        raise source.refusal_of(line, str(error)) from error


def _objective(members: Mapping[str, Any]) -> str:
    found = members.get("objectives", ["time"])
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], str):
        raise ValueError("a result has one objective")
    return found[0]


def _result(members: dict[str, Any], parameters: tuple[str, ...], unit: float, line: int) -> ConfigResult:
    given = object_of(members.get("configuration"), "configuration")
    if tuple(given) != parameters and set(given) != set(parameters):
        raise ValueError(f"the configuration's parameters are {', '.join(parameters)}, as the first result's")
    values: tuple[Value, ...] = tuple(scalar(given[name], name) for name in parameters)
    times = object_of(members.get("times", {}), "times")
    samples = tuple(unit * one for one in numbers_of(times.get("runtimes"), "runtimes"))
    measured = _measurements(members.get("measurements", []))
    extra = {name: value for name, (value, _) in measured.items() if name not in {TIME, "__error__"}}
    extra |= {_READ.get(name, name): value for name, value in times.items() if name != "runtimes"}
    known = {"configuration", "times", "invalidity", "measurements", "objectives", "correctness", OWN}
    extra |= {name: value for name, value in members.items() if name not in known}
    own = dict(object_of(members.get(OWN, {}), OWN))
    reason = own.pop("reason", None)
    if not isinstance(reason, str | None):
        raise ValueError("a reason is a text")
    extra |= {OWN: own} if own else {}
    failure = text_of(members, "invalidity")
    if failure != _RIGHT:
        return ConfigResult(values, None, (), failure, reason, extra, line)
    return ConfigResult(values, _time(measured, samples, unit), samples, extra=extra, line=line)


def _time(measured: Mapping[str, tuple[object, str]], samples: tuple[float, ...], unit: float) -> float:
    if TIME in measured:
        value, said = measured[TIME]
        return number_of({TIME: value}, TIME) * _SHORT.get(said, _UNITS.get(said, unit))
    if not samples:
        raise ValueError(f"a correct result has a measurement called {TIME}, or runtimes")
    return sum(samples) / len(samples)


def _measurements(found: object) -> dict[str, tuple[object, str]]:
    """The value and unit of each measurement."""
    if not isinstance(found, list):
        raise ValueError("measurements are a list")
    told: dict[str, tuple[object, str]] = {}
    for one in found:
        members = object_of(one, "a measurement")
        told[text_of(members, "name")] = (members.get("value"), text_of(members, "unit", ""))
    return told


def _row(results: TuningResults, one: ConfigResult) -> dict[str, Any]:
    extra = dict(one.extra)
    compilation = {_COMPILATION: extra["compile_time"]} if "compile_time" in extra else {}
    times = compilation | {member: extra.pop(name) for name, member in _TIMES.items() if name in extra}
    own = dict(extra.pop(OWN, {})) | ({"reason": one.reason} if one.reason is not None else {})
    objective = [] if one.time_ms is None else [_measurement(TIME, one.time_ms, "ms")]
    others = [_measurement(name, value, "") for name, value in extra.items() if _is_measured(value)]
    row = {name: value for name, value in extra.items() if not _is_measured(value)}
    row |= {
        "configuration": results.members(one),
        "times": {**times, "runtimes": list(one.samples_ms)},
        "invalidity": one.failure or _RIGHT,
        "correctness": int(one.failure != "correctness"),
        "measurements": [*objective, *others],
        "objectives": [results.objective],
    }
    return row | ({OWN: own} if own else {})


def _measurement(name: str, value: object, unit: str) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit}


def _is_measured(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
