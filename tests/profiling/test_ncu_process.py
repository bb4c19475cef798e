"""The process of the profiler, around the program that launches: a stand-in for `ncu`, which is the outside program."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.devices.profiler.ncu import ProfilerFailed, find_ncu, profile_program
from app.profiling.ncu_report import longest, read_report
from app.worker.measuring.profiled import specification
from kernels.problem import Problem
from tests.profiling.test_ncu_report import RAW, REFUSED
from tests.support.started_services import compiling_alone
from tests.support.waiting import until

# As the real one: options, --log-file with the report, then the program, whose end it waits for.
FAKE = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --log-file) report="$2"; shift 2;;
    --section|--metrics) wanted="$wanted $2"; shift 2;;
    --page|--print-units|--clock-control|--profile-from-start|--target-processes) shift 2;;
    --csv) shift;;
    *) break;;
  esac
done
{}
"""
PROGRAM = (sys.executable, "-c", "print('noise'); print('ready', flush=True); assert input() == 'go'")


def fake(folder: Path, body: str) -> str:
    path = folder / "ncu"
    path.write_text(FAKE.replace("{}", body))
    path.chmod(0o755)
    return str(path)


class Leases:
    """Counts leases, and looks whether one is held."""

    def __init__(self) -> None:
        self.taken, self.held = 0, False

    @contextmanager
    def lease(self) -> Iterator[None]:
        self.taken, self.held = self.taken + 1, True
        try:
            yield
        finally:
            self.held = False


def never() -> bool:
    return False


def test_the_program_is_profiled_with_the_device_leased_only_for_its_launch(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(RAW)
    ncu = fake(tmp_path, f'"$@" && cat "{tmp_path}/said" > "$report"')
    leases = Leases()
    text = profile_program(ncu, PROGRAM, ("--section", "Occupancy"), leases.lease, never)
    assert longest(read_report(text)).name == "matmul"
    assert (leases.taken, leases.held) == (1, False)


def test_the_real_program_prepares_a_product_and_launches_it_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(RAW)
    ncu = fake(tmp_path, f'"$@" | tee "{tmp_path}/out" && cat "{tmp_path}/said" > "$report"')
    cache = Path(os.environ["TILEWISE_CACHE_DIR"])
    config = {"BM": 8, "BN": 8, "BK": 8}
    program = (sys.executable, "-m", "app.worker.measuring.profiled")
    with compiling_alone():
        what = specification("opencl:0", cache, Problem(16, 16, 16), "tiled", config)
        profile_program(ncu, (*program, what), (), Leases().lease, never)
    assert (tmp_path / "out").read_text().split() == ["ready", "done"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('printf "==ERROR== The profiler is locked\\n" > "$report"; exit 1', "Nsight Compute: The profiler is locked"),
        ("exit 3", "could not be started"),
        ('"$@"', "wrote no report"),
        ('"$@"; kill -9 $$', "wrote no report"),
    ],
)
def test_a_profiler_that_fails_says_why(tmp_path: Path, body: str, words: str) -> None:
    leases = Leases()
    with pytest.raises(ProfilerFailed, match=words):
        profile_program(fake(tmp_path, body), PROGRAM, (), leases.lease, never)
    assert not leases.held


@pytest.mark.parametrize(
    "body", ['cat "{folder}/refused" > "$report"; exec "$@"', 'echo "%PDF 1,2" > "$report"; exec "$@"']
)
def test_refusals_and_nonsense_are_reports_without_kernels(tmp_path: Path, body: str) -> None:
    (tmp_path / "refused").write_text(REFUSED)
    ncu = fake(tmp_path, body.replace("{folder}", str(tmp_path)))
    text = profile_program(ncu, PROGRAM, (), Leases().lease, never)
    with pytest.raises(ValueError, match=r"ERR_NVGPUCTRPERM|no table"):
        read_report(text)


@pytest.mark.rotating
def test_one_that_hangs_is_killed_with_what_it_started_and_the_lease_is_given_back(tmp_path: Path) -> None:
    body = f'"$@"; sleep 600 & echo $! > "{tmp_path}/pid"; wait'
    leases = Leases()
    with pytest.raises(ProfilerFailed, match="did not end in time"):
        profile_program(fake(tmp_path, body), PROGRAM, (), leases.lease, never, seconds=1.0)
    assert not leases.held
    root = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/root")
    until(lambda: not root.exists(), 20, each=0.05, meanwhile=lambda: "what the profiler had started lives on")


def test_one_that_is_stopped_ends_before_it_is_ready(tmp_path: Path) -> None:
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    leases = Leases()
    with pytest.raises(ProfilerFailed, match="was stopped"):
        profile_program(fake(tmp_path, "exec sleep 600"), PROGRAM, (), leases.lease, stopped.is_set)
    assert leases.taken == 0


def test_it_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_ncu() == path
