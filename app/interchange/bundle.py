"""Bundles: a service's bests and trials as lines of canonical JSON: two of one store are equal, and diff well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from app.interchange.json_text import JsonText, canonical, number_of, numbers_of, object_of, refused, scalar, text_of
from app.interchange.results import (
    MOST_RESULTS,
    BestResult,
    ConfigResult,
    ResultsFile,
    TuningResults,
    Value,
    interval_of,
    problem_of,
    shown,
)
from kernels.space import Config

FORMAT: Final = "tilewise-bundle"
VERSION: Final = 1
_SPACE: Final = ("device", "kernel", "objective", "digest", "environment", "policy")
_BEST: Final = ("device", "kernel", "tuned_at", "digest", "environment", "policy")


def lines(file: ResultsFile, generator: str) -> Iterator[str]:
    """Write a bundle: its header, the bests, each space before its trials, and last the hash of all lines before.

    Everything is sorted, and says nothing of the moment at which it was written.
    """
    found: list[BestResult | TuningResults] = [*file.bests, *file.spaces]
    kernels = sorted({(one.kernel, one.digest) for one in found if one.digest is not None})
    devices = sorted({one.device for one in found})
    header = {"format": FORMAT, "version": VERSION, "generator": generator, "devices": devices, "kernels": kernels}
    digest, count = sha256(), 0
    for line in (canonical(header) + "\n", *_sorted(_best_line(one) for one in file.bests), *_spaces(file.spaces)):
        digest.update(line.encode())
        count += 1
        yield line
    yield canonical({"kind": "end", "lines": count, "sha256": digest.hexdigest()}) + "\n"


def space_lines(space: TuningResults) -> Iterator[str]:
    """Write one space: a line for it, and one for each config."""
    yield canonical(_space_members(space)) + "\n"
    yield from _sorted(canonical(_trial_members(space, one)) + "\n" for one in space.results)


def best_text(best: BestResult) -> str:
    """Write one best."""
    return canonical(_best_line(best))


def read_best(text: str) -> BestResult:
    """Read what best_text wrote; raises InvalidFile."""
    return _best(object_of(JsonText(text).value(), "a line"), 1)


def read(text: str) -> ResultsFile:
    """Read a bundle; raises InvalidFile where it is cut, changed, or no bundle."""
    digest, open_space = sha256(), list[TuningResults]()
    spaces, bests, trials = list[TuningResults](), list[BestResult](), list[ConfigResult]()
    ended, number, count = False, 0, 0
    for number, line in enumerate(_split(text), 1):
        source = JsonText(line, number)
        with source.entry():
            members = object_of(source.value(), "a line")
            source.end()
            if ended:
                raise ValueError("something follows the last line")
            if (count := count + 1) > MOST_RESULTS:
                raise ValueError(f"a bundle has at most {MOST_RESULTS} lines")
            kind = _header(members) if number == 1 else text_of(members, "kind")
            if kind == "end":
                ended = _check_end(members, number - 1, digest.hexdigest())
            elif kind == "best":
                bests.append(_best(members, number))
            elif kind == "space":
                spaces += _closed(open_space, trials)
                open_space, trials = [_space(members, number)], []
            elif kind == "trial":
                trials.append(_trial(_only(open_space), members, number))
            elif kind != "header":
                raise ValueError(f"a line's kind is best, space, trial or end, got {shown(kind)}")
        digest.update((line + "\n").encode())
    if not ended:
        raise refused("the bundle has no last line: it was cut", max(number, 1), 1)
    return ResultsFile((*spaces, *_closed(open_space, trials)), tuple(bests))


def read_space(text: str) -> TuningResults:
    """Read what space_lines wrote; raises InvalidFile."""
    first, *rest = (JsonText(line, number) for number, line in enumerate(_split(text), 1))
    space = _space(object_of(first.value(), "a line"), 1)
    found = (_trial(space, object_of(line.value(), "a line"), number) for number, line in enumerate(rest, 2))
    return replace(space, results=tuple(found))


def _split(text: str) -> list[str]:
    """The lines, whether they end in LF or CRLF."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _sorted(made: Iterable[Any]) -> list[str]:
    return sorted(one if isinstance(one, str) else canonical(one) + "\n" for one in made)


def _spaces(spaces: Iterable[TuningResults]) -> Iterator[str]:
    for space in sorted(spaces, key=lambda one: canonical(_space_members(one))):
        yield from space_lines(space)


def _space_members(space: TuningResults) -> dict[str, Any]:
    told = {name: getattr(space, name) for name in _SPACE}
    told |= {"problem": None if space.problem is None else space.problem.key, "size": list(space.size) or None}
    told |= {"choices": [[name, list(values)] for name, values in space.choices.items()] or None}
    told |= {"extra": dict(space.extra) or None, "parameters": list(space.parameters), "kind": "space"}
    return {name: value for name, value in told.items() if value is not None}


def _trial_members(space: TuningResults, one: ConfigResult) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": "trial", "config": space.members(one), "time_ms": one.time_ms}
    told |= {"samples_ms": list(one.samples_ms) or None, "failure": one.failure, "reason": one.reason}
    told |= {"extra": dict(one.extra) or None}
    return {name: value for name, value in told.items() if value is not None}


def _best_line(one: BestResult) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(one, name) for name in _BEST} | {"kind": "best", "problem": one.problem.key}
    told |= {"config": dict(one.config), "parameters": list(one.config), "time_ms": one.time_ms}
    told |= {"interval_ms": one.interval_ms and list(one.interval_ms), "samples": one.samples}
    told |= {"beside": dict(one.beside)}
    return {name: value for name, value in told.items() if value is not None}


def _header(members: Mapping[str, Any]) -> str:
    if members.get("format") != FORMAT:
        raise ValueError(f"format is {FORMAT}, got {shown(members.get('format'))}")
    if members.get("version") != VERSION or isinstance(members["version"], bool):
        raise ValueError(f"version is {VERSION}, got {shown(members.get('version'))}")
    return "header"


def _check_end(members: Mapping[str, Any], count: int, digest: str) -> bool:
    if members.get("lines") != count:
        raise ValueError(f"{count} lines stand before this one, which says {shown(members.get('lines'))}")
    if members.get("sha256") != digest:
        raise ValueError("the lines before this one are not those that were written")
    return True


def _only(spaces: list[TuningResults]) -> TuningResults:
    if not spaces:
        raise ValueError("a trial stands behind its space")
    return spaces[0]


def _closed(spaces: list[TuningResults], trials: list[ConfigResult]) -> list[TuningResults]:
    return [replace(space, results=tuple(trials)) for space in spaces]


def _known(members: Mapping[str, Any], *names: str) -> None:
    if unknown := sorted(members.keys() - set(names)):
        raise ValueError(f"a line of its kind has no {shown(unknown[0])}")


def _optional(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: text_of(members, name) for name in names if name in members}


def _space(members: dict[str, Any], line: int) -> TuningResults:
    _known(members, *_SPACE, "kind", "problem", "size", "choices", "extra", "parameters")
    told: dict[str, Any] = _optional(members, *_SPACE)
    size = members.get("size", [])
    if not isinstance(size, list) or not all(type(one) is int and 0 < one < 2**31 for one in size):
        raise ValueError(f"size is a list of integers, got {shown(size)}")
    problem = problem_of(members["problem"]) if "problem" in members else None
    parameters = _names(members.get("parameters"))
    if not {"device", "kernel"} <= told.keys():
        raise ValueError("a space has a device and a kernel")
    extra = object_of(members.get("extra", {}), "extra")
    given: dict[str, Any] = {
        "parameters": parameters,
        "size": tuple(size),
        "choices": _choices(members.get("choices", [])),
    }
    return TuningResults(**told, **given, results=(), problem=problem, extra=extra, line=line)


def _names(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("parameters are a list of names")
    return tuple(found)


def _choices(found: object) -> dict[str, tuple[Value, ...]]:
    told: dict[str, tuple[Value, ...]] = {}
    for pair in found if isinstance(found, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):  # noqa: PLR2004 - a pair
            raise ValueError("choices are pairs of a name and its values")
        told[pair[0]] = tuple(scalar(one, pair[0]) for one in (pair[1] if isinstance(pair[1], list) else [None]))
    return told


def _trial(space: TuningResults, members: dict[str, Any], line: int) -> ConfigResult:
    _known(members, "kind", "config", "time_ms", "samples_ms", "failure", "reason", "extra")
    config = object_of(members.get("config"), "config")
    if set(config) != set(space.parameters):
        raise ValueError(f"the parameters are {', '.join(space.parameters)}")
    told = _optional(members, "failure", "reason")
    return ConfigResult(
        tuple(scalar(config[name], name) for name in space.parameters),
        number_of(members, "time_ms") if "time_ms" in members else None,
        numbers_of(members.get("samples_ms"), "samples_ms"),
        extra=object_of(members.get("extra", {}), "extra"),
        line=line,
        **told,
    )


def _best(members: dict[str, Any], line: int) -> BestResult:
    _known(members, *_BEST, "kind", "problem", "config", "parameters", "time_ms", "interval_ms", "samples", "beside")
    config, names = object_of(members.get("config"), "config"), _names(members.get("parameters"))
    if set(config) != set(names) or not all(type(value) is int for value in config.values()):
        raise ValueError("a best's config has an integer for each of its parameters")
    interval = interval_of(members["interval_ms"]) if "interval_ms" in members else None
    if "interval_ms" in members and interval is None:
        raise ValueError("interval_ms is two numbers")
    if type(samples := members.get("samples", 0)) is not int or not 0 <= samples < 2**31:
        raise ValueError("samples are an integer")
    beside = object_of(members.get("beside", {}), "beside")
    found = BestResult(
        device=text_of(members, "device"),
        kernel=text_of(members, "kernel"),
        problem=problem_of(members.get("problem")),
        config=Config(tuple((name, config[name]) for name in names)),
        time_ms=number_of(members, "time_ms"),
        tuned_at=text_of(members, "tuned_at"),
        interval_ms=interval,
        samples=samples,
        beside={name: number_of(beside, name) for name in beside},
        line=line,
        **_optional(members, "digest", "environment", "policy"),
    )
    found.results()  # its names and times are as any space's
    return found
