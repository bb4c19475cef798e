"""Kernel Tuner itself reads our caches and replays equal times, and its own files are read here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.interchange import kernel_tuner as cache
from app.interchange import store_results, t4
from app.interchange.results import ConfigResult, TuningResults, size_of
from app.tuning.outcome import Rejected
from app.tuning.replay import load

# The other program warns of its own habits: a kernel without arguments, an older library.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DATA = Path(__file__).resolve().parents[1] / "data"
RECORDED = ("tiled-cpu-256x256x256", "tiled-cpu-200x300x160", "register_tiled-h200-512x512x512")


def space_of(name: str) -> TuningResults:
    (recording,) = load(DATA / f"{name}.replay.gz")
    found = []
    for config, outcome in recording.outcomes.items():
        values = tuple(config.values())
        if isinstance(outcome, Rejected):
            found.append(ConfigResult(values, failure="runtime", reason=outcome.reason))
        else:
            samples = tuple(1e3 * seconds for seconds in outcome)
            found.append(ConfigResult(values, sum(samples) / len(samples), samples))
    names, problem = tuple(next(iter(recording.outcomes))), recording.problem
    return TuningResults("NVIDIA H200", recording.kernel, names, tuple(found), problem, size_of(problem))


@pytest.mark.parametrize("name", RECORDED)
def test_simulation_replays_our_cache_with_equal_times(name: str, tmp_path: Path) -> None:
    tuner = pytest.importorskip("kernel_tuner")
    files = pytest.importorskip("kernel_tuner.file_utils")
    integration = pytest.importorskip("kernel_tuner.integration")
    space, path = space_of(name), tmp_path / "cache.json"
    path.write_text("".join(cache.lines(space)))
    have, names = {one.values for one in space.results}, space.parameters

    def allowed(values: dict[str, Any]) -> bool:
        return tuple(values[name] for name in names) in have

    parameters = cache.choices(space)
    source = f"__global__ void {space.kernel}() {{}}"
    how = {"simulation_mode": True, "lang": "CUDA", "quiet": True, "block_size_names": list(names)[:1]}
    found, _ = tuner.tune_kernel(
        space.kernel, source, space.size, [], parameters, cache=str(path), restrictions=allowed, **how
    )
    told = {tuple(row[name] for name in names): row for row in found}
    assert set(told) == have
    for one in space.results:
        row = told[one.values]
        assert (row.get("time"), row.get("times")) == (one.time_ms, list(one.samples_ms) or None)
        assert ("__error__" in row) == (one.failure is not None)
    files.store_output_file(str(tmp_path / "theirs.json"), found, parameters)
    theirs = t4.read((tmp_path / "theirs.json").read_text(), space.device, space.kernel)
    times = {one.values: one.time_ms for one in theirs.results}
    assert times == {one.values: one.time_ms for one in space.results}
    (tmp_path / "stored.json").write_text("".join(store_results.lines([space])))
    best = integration.TuneResults(str(tmp_path / "stored.json")).get_best_config(
        store_results.target(space.device), space.size
    )
    least = min((one for one in space.results if one.time_ms is not None), key=lambda one: one.time_ms or 0.0)
    assert best["tunable_parameters"] == space.members(least)
