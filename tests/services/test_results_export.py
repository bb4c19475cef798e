"""Stored trials as files of results: what compiling took, by the names that each format has for it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.interchange import bundle, kernel_tuner, t4
from app.interchange.results import ResultsFile, TuningResults
from app.services.interchange.export import results_of
from app.services.tuning.trial_records import outcome_of
from app.store.records import TrialRecord
from app.tuning.outcome import Compilation, Measured, Rejected
from kernels.device import Device
from tests.support.kernels.devices import H200
from tests.support.services.trial_rows import trial

WHOLE = {
    "seconds": 0.25,
    "local_bytes": 8,
    "shared_bytes": 2048,
    "constant_bytes": 400,
    "max_threads": 1024,
    "grid": 4096,
    "block": [32, 8],
}
DATA = {
    "max_work_group_size": 1024,
    "local_memory_size": 2048,
    "private_memory_size": 8,
    "constant_memory_size": 400,
    "registers": 40,
    "global_size": {"x": 131072, "y": 8, "z": 1},
    "local_size": {"x": 32, "y": 8, "z": 1},
}


def space_of(row: TrialRecord) -> TuningResults:
    (space,) = results_of([row])
    return space


def test_a_whole_compilation_is_t4s_member_and_comes_back_from_every_format() -> None:
    space = space_of(trial(H200, registers=40, compilation=WHOLE))
    text = "".join(t4.lines(space, {"compute_api": "CUDA"}))
    (row,) = json.loads(text)["results"]
    assert row["compilation_data"] == DATA
    assert row["times"]["compilation_time"] == row["times"]["compilation"] == 250.0
    entry = json.loads("".join(kernel_tuner.lines(space)))["cache"]["8,16,8"]
    assert (entry["compile_time"], entry["compilation_data"]) == (250.0, DATA)
    (bundled,) = bundle.read("".join(bundle.lines(ResultsFile((space,)), "here 1"))).spaces
    for found in (t4.read(text, "", ""), kernel_tuner.read("".join(kernel_tuner.lines(space))), bundled):
        (one,) = found.results
        assert one.extra["compilation_data"] == DATA
        assert one.extra["tilewise"]["compilation"] == WHOLE
        assert one.extra["compile_time"] == 250.0
        assert "".join(t4.lines(replace(found, extra=space.extra), {})).count("compilation_data") == 1


@pytest.mark.parametrize("lacking", ["local_bytes", "shared_bytes", "constant_bytes", "max_threads", "grid", "block"])
def test_a_compilation_that_is_not_whole_is_no_member_of_t4s(lacking: str) -> None:
    known = {name: value for name, value in WHOLE.items() if name != lacking}
    text = "".join(t4.lines(space_of(trial(H200, registers=40, compilation=known)), {}))
    (row,) = json.loads(text)["results"]
    assert "compilation_data" not in row
    assert row["tilewise"]["compilation"] == known
    assert t4.read(text, "", "").results[0].extra["tilewise"]["compilation"] == known


def test_what_kernel_tuners_schema_asks_for_is_there() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    tuner = find_spec("kernel_tuner")
    if tuner is None or tuner.origin is None:
        pytest.skip("Kernel Tuner is not installed")
    schema = json.loads((Path(tuner.origin).parent / "schema/T4/1.0.0/results-schema.json").read_text())
    text = "".join(t4.lines(space_of(trial(H200, registers=40, compilation=WHOLE)), {"compute_api": "CUDA"}))
    jsonschema.validate(json.loads(text) | {"schema_version": "1.0.0"}, schema)


@pytest.mark.parametrize("device", [H200])
def test_a_stored_compilation_is_the_one_that_was_measured(device: Device) -> None:
    told = Compilation(0.25, 40, 8, 2048, 400, 1024, 4096, (32, 8))
    measured = outcome_of(trial(device, registers=40, compilation=WHOLE))
    assert isinstance(measured, Measured)
    assert (measured.compilation, measured.registers) == (told, 40)
    failed = outcome_of(trial(device, median_ms=None, state="rejected", stage="verify", reason="r", registers=40))
    assert isinstance(failed, Rejected)
    assert failed.compilation == Compilation(registers=40)
    nothing = outcome_of(trial(device))
    assert isinstance(nothing, Measured)
    assert (nothing.compilation, nothing.registers) == (None, None)
