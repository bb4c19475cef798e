"""Watching processes end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.waiting import until


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def processor_seconds(pid: int) -> float:
    """What all threads of a process have taken of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pids_of_children(parent: subprocess.Popen[str]) -> list[int]:
    """Read the line that a parent prints of its children, or end it."""
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    if len(pids) < 2:
        parent.kill()
        parent.wait(5)
        pytest.fail("the parent has no children")
    return pids


def end_and_expect_no_children(parent: subprocess.Popen[str], number: signal.Signals) -> None:
    pids = pids_of_children(parent)
    parent.send_signal(number)
    parent.wait(5)
    try:
        until(lambda: not any(map(alive, pids)), 2.0, each=0.01, meanwhile=lambda: [*filter(alive, pids)])
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def start_parent(program: str, *arguments: str) -> subprocess.Popen[str]:
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, env=here, text=True)
