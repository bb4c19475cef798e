"""Jobs from the command line: their ids, following, cancelling, and what is stored; with a service and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main
from app.cli.commands.jobs import SHORT
from app.cli.spawn import Started
from tests.support.cli.answering_terminal import XTERM_WITH_SIXEL, answering
from tests.support.cli.command_line import FEW, Run
from tests.support.waiting import until
from tilewise import Client

pytest_plugins = ["tests.support.cli.command_line"]

COMMAND = [sys.executable, "-m", "app.cli"]


@pytest.mark.rotating
def test_tune_prints_the_jobs_id_and_how_to_follow_it(run: Run, service: Started) -> None:
    ran = run("tune", "40x24x16", *FEW, "--seconds", 60, "--url", service.url, "--json")
    assert ran.code == 0, ran.err
    job = ran.json["job"]["id"]
    assert f"Job {job}: tilewise watch {job[:SHORT]} --url {service.url}, tilewise cancel {job[:SHORT]}" in ran.err


@pytest.mark.slow
def test_quiet_tune_says_nothing_but_its_result(run: Run, where: list[str]) -> None:
    ran = run("tune", "40x24x17", *FEW, "--quiet", *where)
    assert ran.code == 0
    assert ran.err == ""
    assert "40x24x17" in ran.out


@pytest.mark.slow
def test_ended_job_is_listed_shown_and_found_by_the_beginning_of_its_id(run: Run, where: list[str]) -> None:
    tuned = run("tune", "40x24x17", *FEW, "--json", *where)
    assert tuned.code == 0, tuned.err
    job = tuned.json["job"]["id"]
    assert job in [one["id"] for one in run("jobs", "--json", *where).json]
    table = run("jobs", *where).out
    assert job[:SHORT] in table
    assert "40x24x17" in table
    watched = run("watch", job[:6], *where)
    assert watched.code == 0
    assert f"Job {job[:SHORT]} succeeded" in watched.out
    assert "40x24x17 float32:" in watched.out
    assert "had ended already: succeeded" in run("cancel", job[:6], *where).out
    trials = run("trials", job[:6], "--json", *where).json
    assert {trial["job_id"] for trial in trials} == {job}
    assert run("trials", job[:6], "--kernel", "naive", "--json", *where).json
    assert "40x24x17 float32" in run("bests", *where).out
    assert run("bests", "--dtype", "double", "--json", *where).json == []


def test_unknown_job_is_none_whatever_is_asked_of_it(run: Run, where: list[str], tmp_path: Path) -> None:
    for words in (["watch"], ["extend"], ["cancel"], ["trials"], ["export", "-o", str(tmp_path / "x")]):
        ran = run(words[0], "zzz", *words[1:], *where)
        assert ran.code == 1
        assert ran.err.endswith("tilewise: there is no job zzz; tilewise jobs lists those there are\n")
    assert not (tmp_path / "x").exists()


def test_beginning_of_several_ids_is_wrong_usage(run: Run, service: Started) -> None:
    with Client(service.url) as client:
        for size in range(5, 5 + 17):  # of 17 ids two begin with the same digit
            client.tune([(size, 3, 3)], kernels=["naive"], trials=1)
        ids = [job.id for job in client.jobs(limit=1000)]
    shared = next(one[0] for one in ids if sum(other[0] == one[0] for other in ids) > 1)
    ran = run("cancel", shared, "--url", service.url)
    assert ran.code == 2
    assert "say more of the id" in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.slow
def test_misses_are_listed_with_how_often_they_were_asked_for(run: Run, where: list[str]) -> None:
    for _ in range(2):
        assert run("best", "71x72x73", *where).code == 0

    def counts() -> list[int]:
        return [entry["count"] for entry in run("misses", "--json", *where).json if entry["problem"]["m"] == 71]

    until(lambda: [count >= 2 for count in counts()] == [True], 60, each=0.1)
    assert "71x72x73 float32" in run("misses", *where).out
    assert "71x72x73 float32" not in run("misses", "--dismiss", "71x72x73", *where).out
    again = run("misses", "--dismiss", "71x72x73", *where)
    assert again.code == 1
    assert "nothing is counted of" in again.err


def speaks(pid: int) -> bool:
    """Whether a process has a connection open."""
    return any("socket:" in str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())


def test_a_running_tune_is_given_more_seconds(run: Run, service: Started) -> None:
    with Client(service.url) as client:
        job = client.tune([(77, 78, 79)], seconds=40.0)
        ran = run("extend", job.id[:SHORT], "--seconds", "20", "--url", service.url)
        assert (ran.code, ran.out) == (0, f"Job {job.id[:SHORT]} has 20 s more.\n")
        assert client.job(job.id).progress.budget_seconds == 60
        client.cancel(job.id)


@pytest.mark.slow
def test_interrupted_watch_leaves_the_job_and_cancel_ends_it(service: Started) -> None:
    environment = {**os.environ, "TILEWISE_URL": service.url}
    with Client(service.url) as client:
        job = client.tune([(600, 600, 600)], kernels=["tiled"], trials=128)
        words = [*COMMAND, "watch", job.id[:12]]
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: speaks(process.pid), 20)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert said.rstrip().endswith("stopped")
        assert "Traceback" not in said
        assert not client.job(job.id).ended
        ran = subprocess.run(
            [*COMMAND, "cancel", job.id[:12]], env=environment, capture_output=True, text=True, check=True
        )
        assert "cancel" in ran.stdout
        assert client.wait(job.id, 60).state == "cancelled"


@pytest.mark.slow
def test_job_that_was_left_queued_is_cancelled_without_a_service(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWISE_DATA_DIR", str(tmp_path))
    words = [*COMMAND, "tune", "64", "--kernels", "naive", "--seconds", "60"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).startswith("Job "):
            assert line
        job = line.split()[1].rstrip(":")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(20) == 130
    assert f"job {job[:SHORT]} is kept" in said
    assert f"tilewise cancel {job[:SHORT]} ends it" in said
    watched = run("watch")
    assert watched.code == 1
    assert "no service runs" in watched.err
    assert run("cancel", job[:SHORT]).code == 0
    assert run("jobs", "--json").json[0]["state"] == "cancelled"


@pytest.mark.slow
def test_a_terminal_with_sixels_is_shown_pictures_of_a_shape(
    run: Run, service: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("tune", "40x24x17", *FEW, "--quiet", "--url", service.url).code == 0
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("KITTY_WINDOW_ID", raising=False)
    words = ["show", "40x24x17", "--url", service.url]
    with answering(XTERM_WITH_SIXEL) as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", terminal.stdin)
        patch.setattr(sys, "stdout", terminal.stdout)
        assert main(words) == 0
    assert terminal.shown.count(b"\x1bP0;1q") == 3
    with answering(XTERM_WITH_SIXEL) as plain, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", plain.stdin)
        patch.setattr(sys, "stdout", plain.stdout)
        assert main([*words, "--no-pictures"]) == 0
    assert b"\x1bP" not in plain.shown
    assert "█".encode() in plain.shown
