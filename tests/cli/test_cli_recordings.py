"""Recordings from the command line: a job exported, and a tune played on a recording with no device."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.cli.spawn import Started
from app.tuning.outcome import Rejected
from app.tuning.replay import Recording, dump, load
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config
from tests.support.cli.command_line import Run
from tilewise import Client

pytest_plugins = ["tests.support.cli.command_line"]

_LIMITS = Limits(threads=1024, shared_bytes=49152, warp=32, sms=16, bandwidth=1e11, peak=1e12, peak64=5e11)


def recorded(seed: int) -> Recording:
    """The whole tiled space with made-up times: slower the further BM * BN is from 256, one config that failed."""
    device = Device("opencl:0", "opencl", "made up", "none", "0", "0", "0", "", 2**30, _LIMITS)
    problem, source = Problem(64, 64, 64), random.Random(seed)  # noqa: S311
    kernel = CATALOGUE["tiled"]
    outcomes: dict[Config, tuple[float, ...] | Rejected] = {}
    for config in kernel.space.legal(problem, device):
        middle = 1e-4 * (1 + abs(config["BM"] * config["BN"] - 256) / 256) * (1 + config["BK"] / 1000)
        outcomes[config] = tuple(middle * source.uniform(0.99, 1.01) for _ in range(16))
    last = list(outcomes)[-1]
    outcomes[last] = Rejected("tiled", last, "launch", "no")
    return Recording(device, "tiled", kernel.digest, problem, "events", outcomes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "space.jsonl.gz"
    dump([recorded(1)], path)
    return path


def near_the_best(found: Mapping[str, float]) -> bool:
    return 0 <= found["regret"] <= 0.03 and found["mean_ms"] >= found["optimum_ms"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("strategy", ["exhaustive", "random", "genetic", "auto"])
def test_a_whole_recorded_space_is_played_to_its_best(run: Run, file: Path, strategy: str) -> None:
    limit = ["--trials", 60] if strategy == "auto" else []  # it learns anew after every trial
    ran = run("replay", file, "--strategy", strategy, "--json", *limit)
    assert ran.code == 0, ran.err
    (found,) = ran.json
    assert near_the_best(found)
    assert 0 < found["evaluations"] <= found["configs"]


def test_trials_limit_the_evaluations_and_a_seed_gives_the_same_again(run: Run, file: Path) -> None:
    words = ["replay", file, "--strategy", "random", "--trials", 20, "--seed", 3, "--json"]
    (one,), (again,) = run(*words).json, run(*words).json
    assert one == again
    assert one["evaluations"] == 20


def test_what_was_played_is_shown_as_a_table(run: Run, file: Path) -> None:
    ran = run("replay", file, "--trials", 30)
    assert ran.code == 0, ran.err
    assert all(word in ran.out for word in ("Evaluations", "Regret", "tiled", "%"))


def test_what_is_no_recording_or_no_strategy_is_wrong_usage(run: Run, file: Path, tmp_path: Path) -> None:
    (tmp_path / "no.jsonl").write_text("no recording\n")
    (tmp_path / "no.jsonl.gz").write_text("no gzip\n")
    for words in ([tmp_path / "no.jsonl"], [tmp_path / "no.jsonl.gz"], [tmp_path], [file, "--strategy", "prayer"]):
        ran = run("replay", *words)
        assert ran.code == 2
        assert ran.err


@pytest.mark.slow
def test_a_job_that_was_tuned_is_exported_and_can_be_replayed(run: Run, service: Started, tmp_path: Path) -> None:
    with Client(service.url) as client:
        job = client.tune([(23, 24, 25)], kernels=["tiled"], trials=2, wait=True)
        assert job.state == "succeeded"
        assert (23, 24, 25) in {(best.problem.m, best.problem.n, best.problem.k) for best in client.bests()}
        assert {trial.round for trial in client.trials(job_id=job.id)} >= {"search", "report"}
    path = tmp_path / "job.jsonl.gz"
    ran = run("export", job.id, "-o", path, "--url", service.url)
    assert ran.code == 0, ran.err
    assert {recording.kernel for recording in load(path)} == {"naive", "tiled"}
    played = run("replay", path, "--json")
    assert played.code == 0, played.err
    assert {one["kernel"] for one in played.json} == {"naive", "tiled"}


def test_a_job_that_is_not_there_cannot_be_exported(run: Run, where: list[str], tmp_path: Path) -> None:
    ran = run("export", "nothing", "-o", tmp_path / "x.jsonl", *where)
    assert ran.code == 1
    assert not (tmp_path / "x.jsonl").exists()
