"""Kernel Tuner's cache: one JSON object that a tuner appends configs to, so that its end may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from json import dumps
from typing import Any, Final

from app.interchange.json_text import JsonText, number_of, numbers_of, object_of, scalar, text_of, texts_of
from app.interchange.results import MOST_RESULTS, OWN, ConfigResult, TuningResults, Value, shown

# Its classes of failure, each written as the value of a member `__error__`, or in place of a time by older versions.
FAILED: Final[Mapping[str, str]] = {
    "InvalidConfig": "constraints",
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "runtime",
    "ErrorConfig": "runtime",
}
WRITTEN: Final[Mapping[str, str]] = {
    "constraints": "InvalidConfig",
    "compile": "CompilationFailedConfig",
    "runtime": "RuntimeFailedConfig",
    "timeout": "RuntimeFailedConfig",
    "correctness": "RuntimeFailedConfig",
}
SECONDS: Final = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")
TIME: Final = "time"  # which every entry has, whatever the objective
_ERROR: Final = "__error__"


def read(text: str) -> TuningResults:
    """Read a cache, whether its last braces are there or not; raises InvalidFile."""
    source, header = JsonText(text), dict[str, Any]()
    results: list[ConfigResult] | None = None
    for name in source.members(unfinished=True):
        if name == "cache":
            results = list(_entries(source, _parameters(source, header)))
        else:
            header[name] = source.value()
    source.end()
    if results is None:
        source.refuse("a cache has a member cache", 0)
    source.at = 0
    with source.entry():
        return _with_header(header, tuple(results))


def lines(results: TuningResults) -> Iterator[str]:
    """Write a cache that Kernel Tuner reads: `time` is the mean of `times`, in milliseconds."""
    header = {
        "device_name": results.device,
        "kernel_name": results.kernel,
        "problem_size": list(results.size),
        "tune_params_keys": list(results.parameters),
        "tune_params": choices(results),
        "objective": results.objective,
        **results.extra,
    }
    if origin := results.origin():
        header[OWN] = origin
    yield plain(header)[:-1] + ',"cache":{'
    before = "\n"
    for one in results.results:
        key = ",".join(map(str, one.values))
        yield f"{before}{plain(key)}:{plain(_entry(results, one))}"
        before = ",\n"
    yield "\n}\n}\n"


def choices(results: TuningResults) -> dict[str, list[Value]]:
    """The values of each parameter that were tried."""
    if results.choices:
        return {name: list(values) for name, values in results.choices.items()}
    columns = zip(*(one.values for one in results.results), strict=True) if results.results else ()
    found = dict(zip(results.parameters, columns, strict=False))
    return {name: sorted(set(found.get(name, ())), key=lambda value: (str(type(value)), value)) for name in found}


def plain(value: object) -> str:
    """JSON in one line, members in the order that they have."""
    return dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _parameters(source: JsonText, header: Mapping[str, Any]) -> tuple[str, ...]:
    with source.entry():
        if "tune_params_keys" not in header:
            raise ValueError("tune_params_keys has to stand before cache")
        return texts_of(header["tune_params_keys"], "tune_params_keys")


def _entries(source: JsonText, parameters: tuple[str, ...]) -> Iterator[ConfigResult]:
    for count, key in enumerate(source.members(unfinished=True)):
        with source.entry() as line:
            if count >= MOST_RESULTS:
                raise ValueError(f"a file has at most {MOST_RESULTS} configs")
            members = object_of(source.value(), "a config")
            found = _result(members, parameters, line)
            if key != (said := ",".join(map(str, found.values))):
                raise ValueError(f"the config {shown(key)} says that it is {shown(said)}")
        yield found


def _result(members: dict[str, Any], parameters: tuple[str, ...], line: int) -> ConfigResult:
    missing = [name for name in parameters if name not in members]
    if missing:
        raise ValueError(f"the config has no {shown(missing[0])}")
    values = tuple(scalar(members[name], name) for name in parameters)
    failed = next((one for one in members.values() if isinstance(one, str) and one in FAILED), None)
    known = {*parameters, TIME, "times", _ERROR}
    extra = {name: value for name, value in members.items() if name not in known}
    if failed is None:
        samples = numbers_of(members.get("times"), "times")
        return ConfigResult(values, number_of(members, TIME), samples, extra=extra, line=line)
    extra = {name: value for name, value in extra.items() if value is not failed}
    own = object_of(extra.get(OWN, {}), OWN)
    failure, reason = own.get("failure", FAILED[failed]), own.get("reason")
    if not isinstance(failure, str) or not isinstance(reason, str | None):
        raise ValueError(f"failure and reason of {OWN} are texts")
    rest = {name: value for name, value in own.items() if name not in {"failure", "reason"}}
    extra = {name: value for name, value in extra.items() if name != OWN} | ({OWN: rest} if rest else {})
    return ConfigResult(values, None, (), failure, reason, extra, line)


def _entry(results: TuningResults, one: ConfigResult) -> dict[str, Any]:
    members: dict[str, Any] = dict(results.members(one))
    if one.failure is None:
        members[TIME] = one.time_ms
        if one.samples_ms:
            members["times"] = list(one.samples_ms)
    else:
        members[_ERROR] = WRITTEN[one.failure]
    extra = dict.fromkeys(SECONDS, 0) | dict(one.extra)
    if one.failure in {"timeout", "correctness"} or one.reason is not None:
        extra[OWN] = {**extra.get(OWN, {}), "failure": one.failure, "reason": one.reason}
    return members | extra


def _with_header(header: dict[str, Any], results: tuple[ConfigResult, ...]) -> TuningResults:
    given = object_of(header.get("tune_params", {}), "tune_params")
    told = {
        name: tuple(scalar(value, name) for value in values) if isinstance(values, list) else ()
        for name, values in given.items()
    }
    known = {"device_name", "kernel_name", "problem_size", "tune_params_keys", "tune_params", "objective", OWN}
    found = TuningResults(
        device=text_of(header, "device_name"),
        kernel=text_of(header, "kernel_name"),
        parameters=texts_of(header["tune_params_keys"], "tune_params_keys"),
        results=results,
        size=_size(header.get("problem_size")),
        choices=told,
        objective=text_of(header, "objective", "time"),
        extra={name: value for name, value in header.items() if name not in known},
    )
    return found.with_origin(header[OWN]) if OWN in header else found


def _size(found: object) -> tuple[int, ...]:
    """A problem's size; nothing where only a function of the tuner knew it."""
    values = [found] if isinstance(found, int) else found
    if values is None or values == "callable":
        return ()
    if not isinstance(values, list) or not all(type(one) is int and 0 < one < 2**31 for one in values):
        raise ValueError(f"problem_size is an integer or a list of them, got {shown(found)}")
    return tuple(values)
