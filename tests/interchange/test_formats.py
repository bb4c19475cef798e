"""Each format holds what it is given, and refuses what is none of it at a line and column."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from app.errors import InvalidFile, Unsupported
from app.interchange import bundle, kernel_tuner, store_results, t4, table, wisdom
from app.interchange.formats import FORMATS, FileSubject, detected, parse, write
from app.interchange.results import BestResult, ConfigResult, ResultsFile, TuningResults
from kernels.problem import Problem
from kernels.space import Config

PROBLEM = Problem(64, 48, 32)
OWN = {"median_ms": 0.25, "ci95_ms": [-0.01, 0.26], "registers": 40}
SPACE = TuningResults(
    device="NVIDIA H200",
    kernel="tiled",
    parameters=("BN", "BM"),
    results=(
        ConfigResult((16, 16), 0.28, (0.28, 0.281), extra={"compile_time": 100.0, "GFLOP/s": 1.5, "tilewise": OWN}),
        ConfigResult((16, 32), 0.2801, (0.25, 0.3102), extra={"timestamp": "2026-11-23T00:00:00+00:00"}),
        ConfigResult((32, 16), failure="compile", reason="too many threads"),
        ConfigResult((32, 32), failure="timeout", reason="10 s were over, and \N{GREEK SMALL LETTER MU}s more"),
        ConfigResult((64, 32), failure="correctness", reason="C[0,0] is wrong"),
    ),
    problem=PROBLEM,
    size=(64, 48, 32),
    choices={"BN": (16, 32, 64), "BM": (16, 32)},
    digest="0f",
    environment="driver 1; runtime 2",
    policy="events",
)
BEST = BestResult(
    *("NVIDIA H200 | sm_90", PROBLEM, "tiled", Config.of({"BM": 16, "BN": 8}), 0.0425, "2026-11-23T00:00:00+00:00"),
    *((-0.001, 0.043), 40, "0f", "driver 1", "events", {"vendor": 0.05, "default": 0.06}),
)
# One of Kernel Tuner's own, in both spellings of failure, as it leaves the file while it runs.
OPEN = """{"device_name":"NVIDIA H200","kernel_name":"tiled","problem_size":[64,48,32],"tune_params_keys":["BM","BN"],
"tune_params":{"BM":[16,32],"BN":[16,32]},"objective":"time","cache":{
"16,16":{"BM":16,"BN":16,"time":0.28,"times":[0.28,0.28],"compile_time":100.0,"GFLOP/s":1.25},
"16,32":{"BM":16,"BN":32,"time":"RuntimeFailedConfig","compile_time":1},
"32,32":{"BM":32,"BN":32,"__error__":"CompilationFailedConfig","compile_time":100.0},"""


def written(name: str, space: TuningResults = SPACE) -> str:
    """A file of one space."""
    return "".join(
        {
            "kernel-tuner": lambda: kernel_tuner.lines(space),
            "t4": lambda: t4.lines(space, {"compute_api": "CUDA"}),
            "t4-1.0": lambda: t4.lines(space, {"compute_api": "CUDA"}, t4.FIRST),
            "store-results": lambda: store_results.lines([space]),
            "wisdom": lambda: wisdom.lines([space]),
            "csv": lambda: table.csv_lines([space]),
            "bundle": lambda: bundle.lines(ResultsFile((space,), (BEST,)), "tilewise 1"),
        }[name]()
    )


def known(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a config, without the seconds that Kernel Tuner's files have for every one."""
    return {name: value for name, value in extra.items() if name not in kernel_tuner.SECONDS or value}


def comparable(space: TuningResults) -> TuningResults:
    """A space with no line numbers, and its results in order."""
    return replace(space, results=tuple(sorted(space.results, key=lambda one: one.values)))


@pytest.mark.parametrize("name", ["kernel-tuner", "csv", "bundle", "t4", "t4-1.0"])
def test_a_whole_space_comes_back_as_it_was(name: str) -> None:
    (found,) = parse(name, written(name).encode(), FileSubject()).spaces
    results = tuple(replace(one, extra=known(one.extra)) for one in found.results)
    choices = SPACE.choices if name in {"kernel-tuner", "bundle"} else {}
    assert comparable(replace(found, results=results, extra={})) == comparable(replace(SPACE, choices=choices))


def test_parquet_is_a_table_of_texts_that_comes_back_as_it_was() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'tilewise[formats]' has pyarrow")
    data = b"".join(write("parquet", ResultsFile((SPACE,), ()), "tilewise 1", lambda *_: []))
    assert detected(data) == "parquet"
    rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    assert [json.loads(row["config"]) for row in rows] == [dict(SPACE.members(one)) for one in SPACE.results]
    assert [row["time_ms"] for row in rows] == [one.time_ms and repr(one.time_ms) for one in SPACE.results]
    (found,) = parse("parquet", data, FileSubject()).spaces
    assert comparable(found) == comparable(replace(SPACE, choices={}))
    for wrong in (data[: len(data) // 2], data[:4] + data[-4:], data.replace(b"time_ms", b"tide_ms")):
        with pytest.raises(InvalidFile):
            parse("parquet", wrong, FileSubject())
    numbers = io.BytesIO()
    parquet.write_table(parquet.read_table(io.BytesIO(data)).append_column("size2", [[1] * len(rows)]), numbers)
    with pytest.raises(InvalidFile, match="there is no column"):
        parse("parquet", numbers.getvalue(), FileSubject())


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_its_library_says_what_to_install() -> None:
    with pytest.raises(Unsupported, match=r"tilewise\[formats\]"):
        parse("parquet", b"PAR1", FileSubject())


@pytest.mark.parametrize("name", ["store-results", "wisdom"])
def test_the_bests_of_a_space_come_back_with_what_the_format_holds(name: str) -> None:
    (found,) = parse(name, written(name).encode(), FileSubject()).spaces
    measured = [replace(one, samples_ms=()) for one in SPACE.results if one.time_ms is not None]
    assert found == replace(SPACE, results=tuple(measured), choices={})


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "parquet"])
def test_a_file_is_known_by_its_beginning_and_written_again_alike(name: str) -> None:
    text = written(name)
    assert detected(text.encode()) == name
    assert detected(b"\xef\xbb\xbf" + text.encode()) == name
    again = parse(name, text.replace("\n", "\r\n").encode() if name != "bundle" else text.encode(), FileSubject())
    (space,) = again.spaces
    assert comparable(space) == comparable(parse(name, text.encode(), FileSubject()).spaces[0])


def test_a_bundle_has_its_bests_and_equal_bytes_for_equal_stores() -> None:
    text = written("bundle")
    found = bundle.read(text)
    assert found.bests == (BEST,)
    assert "".join(bundle.lines(found, "tilewise 1")) == text
    other = replace(SPACE, results=SPACE.results[::-1])
    assert "".join(bundle.lines(ResultsFile((other,), (BEST,)), "tilewise 1")) == text


def test_a_cache_that_a_tuner_left_open_has_its_configs_in_both_spellings_of_failure() -> None:
    for ending in ("", "\n}\n}", "}}", "\n"):
        text = OPEN.rstrip(",") + ending if ending.strip() else OPEN + ending
        found = kernel_tuner.read(text)
        assert [one.failure for one in found.results] == [None, "runtime", "compile"]
        assert found.results[0].extra == {"compile_time": 100.0, "GFLOP/s": 1.25}
        assert [one.line for one in found.results] == [3, 4, 5]


def test_t4_keeps_what_it_says_of_compilation() -> None:
    said = {"max_work_group_size": 512, "registers": 40, "local_size": {"x": 32, "y": 1, "z": 1}}
    file = json.loads(written("t4"))
    file["results"][0]["compilation_data"] = said
    (found,) = parse("t4", json.dumps(file).encode(), FileSubject()).spaces
    assert json.loads(written("t4", found))["results"][0]["compilation_data"] == said


def test_t4_of_other_units_is_in_milliseconds() -> None:
    row: dict[str, Any] = {"configuration": {"BM": 16}, "times": {"runtimes": [2000, 4000]}, "invalidity": "correct"}
    text = json.dumps({"schema_version": "1.1.0", "metadata": {"timeunit": "microseconds"}, "results": [row]})
    found = t4.read(text, "NVIDIA H200", "tiled")
    assert found.results == (ConfigResult((16,), 3.0, (2.0, 4.0)),)
    assert found.parameters == ("BM",)


def test_what_a_file_does_not_say_is_the_callers_to_say() -> None:
    text = OPEN.replace("[64,48,32]", "[64,48]").encode()
    with pytest.raises(
        InvalidFile, match=r"a size of \[64, 48\] and does not say which product that is: give m, n and"
    ):
        parse("kernel-tuner", text, FileSubject())
    subject = FileSubject("mine", "pipelined", {"m": 64, "n": 48, "k": 7, "dtype": "float16"})
    (found,) = parse("kernel-tuner", text, subject).spaces
    assert (found.device, found.kernel, found.problem) == ("mine", "pipelined", Problem(64, 48, 7, dtype="float16"))


REFUSED = {
    "no JSON": ("kernel-tuner", OPEN.replace('"time":0.28', '"time":0.2.8'), 3, "this is no JSON"),
    "twice": ("kernel-tuner", OPEN.replace('"compile_time":1}', '"BM":1}'), 4, "the member 'BM' is there twice"),
    "another config": ("kernel-tuner", OPEN.replace('"16,32":', '"16,33":'), 4, "says that it is '16,32'"),
    "the same config": ("kernel-tuner", OPEN.replace('"16,32"', '"16,16"'), 4, "is there twice"),
    "not finite": ("kernel-tuner", OPEN.replace("0.28,", "1e999,"), 3, "too large"),
    "no number": ("kernel-tuner", OPEN.replace("0.28,", "NaN,"), 3, "NaN is no number here"),
    "negative": ("kernel-tuner", OPEN.replace('"time":0.28', '"time":-1'), 3, "positive number of milliseconds"),
    "cut": ("kernel-tuner", OPEN[:-60], 5, "this is no JSON"),
    "deep": ("kernel-tuner", OPEN + '\n"x":' + "[" * 100_000, 6, "nested too deeply"),
    "half a character": ("kernel-tuner", OPEN.replace('"tiled"', '"\\ud800"'), 1, "half a character"),
    "an integer of 5000 digits": ("kernel-tuner", OPEN.replace("100.0", "9" * 5000), 3, "too large"),
    "no end": ("bundle", "\n".join(written("bundle").split("\n")[:-2]) + "\n", 8, "it was cut"),
    "changed": ("bundle", written("bundle").replace("0.0425", "0.0426"), 9, "not those that were written"),
    "another version": ("bundle", written("bundle").replace('"version":1', '"version":2'), 1, "version is 1"),
    "a row too short": ("csv", written("csv") + "a,b\r\n", 7, "the row has 2 cells"),
    "a cell": ("csv", written("csv").replace("0.2801", "0.28.01"), 3, "something follows the end"),
    "T4 of tomorrow": ("t4", written("t4").replace("1.1.0", "2.0.0"), 1, "schema_version is 1.0.0 or 1.1.0"),
    "T4 of another space": ("t4", written("t4").replace('{"BN":32,"BM":32}', '{"BN":32}'), 5, "as the first result's"),
    "wisdom": ("wisdom", written("wisdom").replace("[16,32]", "[16]"), 3, "a value for each of tunable_parameters"),
    "no wisdom": ("wisdom", "# nothing\n", 1, "no header"),
    "a size": ("store-results", written("store-results").replace("64x48x32", "64x-1"), 2, "problem_size is a text"),
    "empty": ("kernel-tuner", "", 1, "{ was expected, got the end of the file"),
    "no UTF-8": ("csv", "a,\udcff", 1, "UTF-8"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_none_is_refused_at_its_line(what: str) -> None:
    name, text, line, message = REFUSED[what]
    with pytest.raises(InvalidFile, match="line") as refusal:
        parse(name, text.encode("utf-8", "surrogateescape"), FileSubject())
    assert message in refusal.value.message
    assert refusal.value.facts["line"] == line
    assert str(refusal.value.facts["column"]).isdecimal()
