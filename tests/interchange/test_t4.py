"""Other programs read our T4 files: by Kernel Tuner's own schema, and by autotuning_methodology with equal times."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from app.interchange import t4
from app.interchange.results import ConfigResult, TuningResults
from tests.interchange.test_kernel_tuner import space_of


@pytest.fixture(scope="module")
def space() -> TuningResults:
    """A recorded space of which three configs failed, each in another way."""
    found = space_of("tiled-cpu-256x256x256")
    first, *others = found.results  # the reader of autotuning_methodology asks that the first have a time
    hows = "compile", "runtime", "correctness"
    failed = [ConfigResult(one.values, failure=how) for one, how in zip(others, hows, strict=False)]
    return replace(found, results=(first, *failed, *others[len(failed) :]))


@pytest.mark.parametrize("version", [t4.FIRST, t4.NEWEST])
def test_a_file_is_of_the_schema_that_kernel_tuner_has(space: TuningResults, version: str) -> None:
    files = pytest.importorskip("kernel_tuner.file_utils")
    jsonschema = pytest.importorskip("jsonschema")
    _, schema = files.output_file_schema("results")
    file = json.loads("".join(t4.lines(space, {"compute_api": "CUDA"}, version)))
    assert file["schema_version"] == version
    jsonschema.validate(file, schema)
    assert [row["invalidity"] for row in file["results"][:4]] == ["correct", "compile", "runtime", "correctness"]
    file["results"][0]["invalidity"] = "unlucky"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(file, schema)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")  # it means over a failure's no times
def test_autotuning_methodology_reads_equal_times(space: TuningResults, tmp_path: Path) -> None:
    reason = "there is no autotuning_methodology: pip install autotuning-methodology"
    statistics = pytest.importorskip("autotuning_methodology.searchspace_statistics", reason=reason)
    path = tmp_path / "space.json"
    compiled = [replace(one, extra={"compile_time": 10.0 * at}) for at, one in enumerate(space.results, 1)]
    path.write_text("".join(t4.lines(replace(space, results=tuple(compiled)), {"compute_api": "CUDA"})))
    read = statistics.SearchspaceStatistics(
        application_name=space.kernel,
        device_name=space.device,
        minimization=True,
        objective_time_keys=["compilation", "runtimes"],
        objective_performance_keys=["time"],
        full_search_space_file_path=path,
    )
    times = [None if isnan(time) else float(time) for time in read.objective_performances_total]
    assert times == [one.time_ms for one in space.results]
    assert list(read.objective_times["compilation"]) == pytest.approx([1e-2 * at for at in range(1, len(times) + 1)])
