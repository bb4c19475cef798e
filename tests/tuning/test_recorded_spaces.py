"""The recorded spaces in tests/data: whole, and searched and tuned by Replay with no device."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport, Rejected
from app.tuning.replay import Recording, Replay, load
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.web import STATIC
from kernels import CATALOGUE
from kernels.space import Config

_ROOT = Path(__file__).parent.parent.parent
PATHS = sorted((_ROOT / "tests/data").glob("*.replay.gz"))


@pytest.fixture(params=PATHS, ids=lambda path: path.name.removesuffix(".replay.gz"))
def recording(request: pytest.FixtureRequest) -> Recording:
    return recorded(request.param)


@cache
def recorded(path: Path) -> Recording:
    (found,) = load(path)
    return found


def tuned(recording: Recording, strategy: str, seed: int, trials: int) -> tuple[int, FinalReport]:
    """The evaluations that a tune made, and its finals."""
    replay = Replay(recording, seed)
    task = Task((recording.space(),), recording.problem, recording.device, strategy, seed)
    *_, final = tune(task, replay, lambda: Budget(trials=trials))
    assert isinstance(final, FinalReport)
    return replay.evaluations, final


def test_there_are_spaces_of_a_gpu_and_of_a_processor() -> None:
    assert {load(path)[0].device.platform for path in PATHS} == {"cuda", "opencl"}


def test_a_recording_is_of_the_whole_space_as_it_was(recording: Recording) -> None:
    kernel = CATALOGUE[recording.kernel]
    if kernel.digest == recording.digest:
        assert set(kernel.space.legal(recording.problem, recording.device)) == set(recording.outcomes)
    assert recording.policy in {"events", "graph"}


def test_what_is_close_to_the_best_was_measured_often(recording: Recording) -> None:
    found = {config: one for config, one in recording.outcomes.items() if not isinstance(one, Rejected)}
    limit = 1.1 * min(map(median, found.values()))  # which were close was judged by fewer samples
    assert all(len(samples) >= (32 if median(samples) <= limit else 2) for samples in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_auto_is_within_2_percent_of_the_best_in_150_trials(recording: Recording, seed: int) -> None:
    evaluations, final = tuned(recording, "auto", seed, 150)
    chosen = recording.outcomes[final.best.config]
    best = min(median(found) for found in recording.outcomes.values() if not isinstance(found, Rejected))
    print(f"seed {seed}: {recording.problem.key} of {len(recording.outcomes)} configs after {evaluations}")
    assert evaluations <= 150
    assert not isinstance(chosen, Rejected)
    assert median(chosen) <= 1.02 * best


@pytest.mark.rotating
@pytest.mark.drawn(2)
def test_what_is_told_of_the_winner_is_what_it_takes(recording: Recording) -> None:
    _, final = tuned(recording, "random", 3, 60)
    found = recording.outcomes[final.best.config]
    assert not isinstance(found, Rejected)
    assert final.best.timing.median_ms == pytest.approx(1e3 * median(found), rel=0.01)


def test_the_tune_that_the_pages_play_has_recorded_times_alone_and_is_small() -> None:
    file = STATIC / "recorded/h200.json"
    assert file.stat().st_size <= 32_000
    told = json.loads(file.read_text(encoding="utf-8"))
    recording = next(recorded(path) for path in PATHS if "h200-1024x" in path.name)
    peers = json.loads((_ROOT / "benchmarks/results/kernels/peers-h200.json").read_text(encoding="utf-8"))
    (compared,) = (one for one in peers["shapes"] if one["problem"] == told["problem"])
    beside = {one["name"]: one["median_ms"] for one in compared["figures"]}
    assert (told["device"]["name"], told["space"]) == (recording.device.name, len(recording.outcomes))
    for kernel, _, values, *outcome in told["trials"]:
        if kernel != recording.kernel:
            assert outcome == [pytest.approx(beside[kernel], rel=1e-4)]
            continue
        found = recording.outcomes[Config(tuple(zip(told["kernels"][kernel], values, strict=True)))]
        if isinstance(found, Rejected):
            assert outcome == [found.stage, found.reason]
        else:
            (median_ms,) = outcome
            assert 0.9999e3 * min(found) <= median_ms <= 1.0001e3 * max(found)
