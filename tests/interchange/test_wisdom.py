"""Wisdom files of ours by the grammar that Kernel Launcher's readers accept, and what its C++ reader would choose.

Its C++ is in no package index, so the rules stand here as this project understands them: the header is the first line
and names the version, the key, an objective and every parameter of the space, once; a record is a line of its own with
a value for each parameter, up to three sizes that count, a device's name, and a number under the objective's name. The
choice is by device, then by size, then by the nearest volume, then by the least time, the first of equals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from app.interchange import wisdom
from app.interchange.results import ConfigResult, TuningResults, size_of
from kernels.problem import Problem
from tests.interchange.test_kernel_tuner import RECORDED, space_of

_SCALAR = r"(?:-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|\"(?:[^\"\\]|\\.)*\")"
_LIST = rf"\[{_SCALAR}(?:,{_SCALAR})*\]"
HEADER = re.compile(r'\{"version":"1\.0","objective":"\w+","tunable_parameters":\["\w+"(?:,"\w+")*\],"key":"[^"]+"\}')
RECORD = re.compile(
    rf'\{{"config":{_LIST},"problem_size":\[\d+(?:,\d+)*\],"time":\d[-+.\deE]*,"environment":\{{"device_name":"[^"]+".*\}}'
)


@dataclass(frozen=True)
class Chosen:
    """What the reader would give to a program: how well it matches, and the config by parameter."""

    match: str
    config: dict[str, Any]


def chosen(text: str, space: TuningResults, device: str, size: Sequence[int]) -> Chosen | None:
    """What a reader with those rules chooses; None where it ignores the file."""
    first, *lines = text.split("\n")
    header = json.loads(first)
    names = header["tunable_parameters"]
    if (header["version"], header["key"]) != ("1.0", space.kernel) or not isinstance(header["objective"], str):
        return None
    if len(names) != len(space.parameters) or not set(names) <= set(space.parameters):
        return None
    ranked: list[tuple[tuple[int, int, float], int, Chosen]] = []
    for line in filter(None, lines):
        record = json.loads(line)
        other = ([*record["problem_size"], 1, 1, 1])[:3]
        device_differs = record["environment"]["device_name"] != device
        match = "device" if device_differs else "size" if other != list(size)[:3] else "exact"
        apart = abs(_volume(size) - _volume(other))
        order = ("exact", "size", "device").index(match), apart, float(record[header["objective"]])
        ranked.append((order, len(ranked), Chosen(match, dict(zip(names, record["config"], strict=True)))))
    return min(ranked)[2] if ranked else None


def _volume(size: Sequence[int]) -> int:
    x, y, z = ([*size, 1, 1, 1])[:3]
    return x * y * z


def written(*spaces: TuningResults) -> str:
    return "".join(wisdom.lines(spaces))


@pytest.mark.parametrize("name", RECORDED)
def test_every_line_of_a_recorded_space_is_of_the_grammar_and_its_best_is_chosen(name: str) -> None:
    space = space_of(name)
    text = written(space)
    header, *records = text.removesuffix("\n").split("\n")
    assert HEADER.fullmatch(header)
    assert len(records) == wisdom.BEST
    assert all(RECORD.fullmatch(line) for line in records)
    least = min((one for one in space.results if one.time_ms is not None), key=lambda one: one.time_ms or 0.0)
    assert chosen(text, space, space.device, space.size) == Chosen("exact", space.members(least))
    far = [7 * one for one in space.size]
    assert chosen(text, space, space.device, far) == Chosen("size", space.members(least))
    assert chosen(text, space, "another", space.size) == Chosen("device", space.members(least))


@pytest.mark.parametrize("name", RECORDED)
def test_the_best_of_a_recorded_space_come_back_with_equal_times(name: str) -> None:
    space = space_of(name)
    (found,) = wisdom.read(written(space))
    measured = sorted((one for one in space.results if one.time_ms is not None), key=lambda one: one.time_ms or 0.0)
    assert [(one.values, one.time_ms) for one in found.results] == [
        (one.values, one.time_ms) for one in measured[: wisdom.BEST]
    ]
    assert (found.problem, found.size, found.parameters) == (space.problem, space.size, space.parameters)


def sized(problem: Problem, time_ms: float, values: tuple[int, int] = (16, 32)) -> TuningResults:
    results = (ConfigResult(values, time_ms),)
    return TuningResults("NVIDIA H200", "tiled", ("BM", "BN"), results, problem, size_of(problem))


def test_the_nearest_volume_is_chosen_and_a_fourth_size_is_not_seen() -> None:
    near, far = sized(Problem(64, 64, 64), 0.5, (16, 16)), sized(Problem(512, 512, 512), 0.1, (32, 32))
    text = written(near, far)
    assert chosen(text, near, near.device, (70, 64, 64)) == Chosen("size", {"BM": 16, "BN": 16})
    assert chosen(text, near, near.device, (400, 512, 512)) == Chosen("size", {"BM": 32, "BN": 32})
    batched = sized(Problem(64, 64, 64, 8), 0.25, (8, 8))
    assert chosen(written(near, batched), near, near.device, near.size) == Chosen("exact", {"BM": 8, "BN": 8})


def test_a_whole_number_of_milliseconds_is_an_integer_and_read_as_the_same_time() -> None:
    text = written(sized(Problem(64, 64, 64), 2.0))
    assert '"time":2,' in text
    assert wisdom.read(text)[0].results[0].time_ms == 2.0


def test_a_space_with_another_parameter_ignores_the_file() -> None:
    space = sized(Problem(64, 64, 64), 0.5)
    assert chosen(written(space), space, space.device, space.size) is not None
    others = replace(space, parameters=("BM", "BK"))
    assert chosen(written(space), others, space.device, space.size) is None


def test_a_file_whose_first_line_is_a_comment_is_read_here_and_written_without_it() -> None:
    text = written(sized(Problem(64, 64, 64), 0.5))
    found = wisdom.read("# by hand\n" + text)
    assert written(*found) == text
