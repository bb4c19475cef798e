"""The processor's counters of a process of ours: what is not counted here has a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.devices.profiler.perf_events import EventCounts, counting

WORK = "input(); sum(range(3_000_000)); print('done', flush=True); input()"


def test_the_time_of_another_process_is_counted_while_it_works_and_missing_events_have_a_reason() -> None:
    command = [sys.executable, "-c", WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with counting(process.pid) as counted:
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"
        process.stdin.write(b"\n")
    if not counted.counts:
        pytest.skip(f"perf events are refused here: {counted.reason}")
    assert 1e6 < counted.counts["task_nanoseconds"] < 60e9
    if "instructions" in counted.counts:
        assert counted.counts["instructions"] > 3e6
    else:
        assert "perf_event_open" in (counted.reason or "")


def test_a_process_that_is_gone_counts_nothing_and_says_why() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with counting(process.pid) as counted:
        pass
    assert counted.counts == {}
    assert "perf_event_open" in (counted.reason or "")


def test_counts_become_figures_of_one_launch() -> None:
    counts = {
        "instructions": 8e9,
        "cycles": 4e9,
        "l1_accesses": 1e9,
        "l1_misses": 1e8,
        "last_level_accesses": 1e7,
        "last_level_misses": 2.5e6,
        "task_nanoseconds": 3e9,
    }
    figures = EventCounts(counts).figures(launches=10, seconds=2.0)
    assert figures == pytest.approx(
        {
            "instructions": 8e8,
            "instructions_per_cycle": 2.0,
            "l1_hit_percent": 90.0,
            "last_level_hit_percent": 75.0,
            "dram_bytes": 64 * 2.5e5,
            "busy_cores": 1.5,
        }
    )
    assert EventCounts({"instructions": 1.0}).figures(1, 1.0) == {"instructions": 1.0}
