"""Counters of a GPU's contender: `ncu` on PATH is the outside program, and whatever it does the profile goes on."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

from app.devices.backend import Vendor
from app.devices.compiler_pool import Compilers
from app.devices.fleet import Unit
from app.devices.lease import Lease, Priority
from app.devices.process import Worker
from app.devices.sandbox import Sandbox, Support
from app.devices.worker_entry import nothing
from app.profiling.ncu_report import GROUPS, options
from app.services.profiles.counters import CounterReading, read_counters
from kernels.problem import Problem
from kernels.space import Config
from tests.profiling.test_ncu_process import fake
from tests.profiling.test_ncu_report import RAW, REFUSED
from tests.support.kernels.devices import H200

# As a program that could launch and was told to.
LAUNCHED = "echo ready; read go; "


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    worker = Worker("never started", nothing, ())
    return Unit(H200, Vendor(None), Lease(), worker, worker, Compilers(tmp_path, Sandbox(Support())))


def reading(unit: Unit, cache: Path) -> CounterReading:
    def never_repeated(seconds: float) -> tuple[int, float]:
        raise AssertionError(f"the worker launched for {seconds} s, and no counter was read")

    subject = Problem(64, 64, 64), "tiled", Config.of({"BM": 8, "BN": 8, "BK": 8})
    return read_counters(unit, cache, subject, 0.001, never_repeated, lambda: False)


@pytest.mark.parametrize(
    ("said", "reason"),
    [(RAW, None), (REFUSED, "Nsight Compute: ERR_NVGPUCTRPERM"), ("a,b\n1,2\n", "wrote no table"), ("", "no report")],
)
def test_what_ncu_says_is_read_and_a_refusal_is_the_reason(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str | None
) -> None:
    (tmp_path / "said").write_text(said)
    fake(tmp_path, f'{LAUNCHED} cat "{tmp_path}/said" > "$report"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = reading(unit, tmp_path)
    assert found.source == "ncu"
    if reason is None:
        assert (found.values["registers"], found.reason) == (40, None)
    else:
        assert found.values == {}
        assert reason in (found.reason or "")
    assert unit.lease.try_acquire(Priority.PRODUCT) is not None, "the device was not given back"


def test_without_ncu_the_reason_is_that_it_is_not_installed(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reading(unit, tmp_path).reason == "Nsight Compute (ncu) is not installed here"


@pytest.mark.slow
def test_a_product_is_let_in_between_two_groups_of_counters(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_text(RAW)
    runs = tmp_path / "runs"
    fake(tmp_path, f'echo "$wanted" >> "{runs}"; {LAUNCHED} sleep 0.4; cat "{tmp_path}/said" > "$report"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    waits, ended = list[float](), threading.Event()

    def products() -> None:
        """One after another, as soon as the profiler has the device."""
        while not ended.is_set():
            if unit.lease.try_acquire(Priority.PRODUCT) is None:
                since = monotonic()
                with unit.lease.held(Priority.PRODUCT):
                    waits.append(monotonic() - since)
            else:
                unit.lease.release()
            sleep(0.01)

    other = threading.Thread(target=products)
    other.start()
    try:
        found = reading(unit, tmp_path)
    finally:
        ended.set()
        other.join()
    assert (found.values["registers"], found.reason) == (40, None)
    assert len(runs.read_text().splitlines()) == len(GROUPS) >= 5
    assert len(waits) == len(GROUPS), "a product had no turn between two runs"
    assert max(waits) < sum(waits) / 2, "a product waited for more than one of five runs"


def test_what_was_counted_before_a_run_that_fails_is_kept_with_its_reason(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_text(RAW)
    body = 'case "$wanted" in *WarpStateStats*) echo "==ERROR== no such section" > "$report"; exit 1;; esac; '
    fake(tmp_path, f'{body}{LAUNCHED} cat "{tmp_path}/said" > "$report"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = reading(unit, tmp_path)
    assert found.values["registers"] == 40
    assert found.reason == "Nsight Compute: no such section"


def test_each_counter_that_is_shown_is_asked_for_once() -> None:
    sections = [section for group, _ in GROUPS for section in group]
    metrics = [metric for _, group in GROUPS for metric in group]
    assert len(set(sections)) == len(sections)
    assert len(set(metrics)) == len(metrics)
    assert set(sections) == {"SpeedOfLight", "LaunchStats", "MemoryWorkloadAnalysis", "Occupancy", "WarpStateStats"}
    assert options(("Occupancy",), metrics[:1])[-1] == f"gpu__time_duration.sum,{metrics[0]}"
