"""Nsight Compute in a process of its own, which profiles one program and may be killed at any moment."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

from app.devices.process.worker_main import GLANCE

READY, GO = b"ready\n", b"go\n"  # what the program says once it could launch, and what it is told then
_PLACES: Final = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
_OPTIONS: Final = (
    *("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
    *("--profile-from-start", "off", "--target-processes", "all"),
)
_PREPARING: Final = 120.0  # seconds until the program could launch: a driver, a compiler and operands
_ENDING: Final = 2.0  # seconds that a killed process has to be gone


class ProfilerFailed(Exception):
    """The profiler gave no report; the message says why."""


def find_ncu() -> str | None:
    """Where Nsight Compute is installed, or None."""
    found = shutil.which("ncu")
    folders = [Path(place) for place in _PLACES]
    known = [folder / "ncu" for base in folders for folder in (base, *sorted(base.glob("*"), reverse=True))]
    return found or next((str(path) for path in known if os.access(path, os.X_OK) and path.is_file()), None)


def profile_program(
    ncu: str,
    program: Sequence[str],
    wanted: Sequence[str],
    leased: Callable[[], AbstractContextManager[None]],
    stopped: Callable[[], bool],
    seconds: float = 60.0,
) -> str:
    """The report of a program's launches between its marks, for which the device is leased, and not before.

    `wanted` are options that say which metrics. The program says `ready` on its standard output and launches when it is
    told `go`. Raises ProfilerFailed, also where `stopped` or the `seconds` are over: everything is killed then.
    """
    with tempfile.TemporaryDirectory(prefix="tilewise-ncu-") as folder:
        report = Path(folder) / "report.csv"
        command = [ncu, *_OPTIONS, *wanted, "--log-file", str(report), *program]
        with _running(command, folder) as process:
            if _line(process, monotonic() + _PREPARING, stopped) != READY:
                raise ProfilerFailed(_reason(process, report, "the profiled program could not be started"))
            with leased():
                _tell(process)
                _await_end(process, monotonic() + seconds, stopped)
        text = _text(report)
    if not text.strip():
        raise ProfilerFailed("Nsight Compute wrote no report")
    return text


@contextmanager
def _running(command: Sequence[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """The process in a session of its own; everything in it is killed at the end."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]
    except OSError as error:
        raise ProfilerFailed(f"Nsight Compute cannot be started: {error.strerror or error}") from error
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)
        process.stdin.close()
        process.stdout.close()


def _line(process: subprocess.Popen[bytes], until: float, stopped: Callable[[], bool]) -> bytes:
    """The program's first line, or as much of it as came; what the tool itself prints is passed over."""
    output, line = process.stdout, b""
    if output is None:
        return line
    while True:
        if stopped():
            raise ProfilerFailed("the profile was stopped")
        if monotonic() >= until:
            raise ProfilerFailed(f"the profiled program was not ready within {_PREPARING:g} s")
        if not select.select([output], [], [], GLANCE)[0]:
            continue
        byte = os.read(output.fileno(), 1)
        line += byte
        if not byte or line == READY:
            return line
        if byte == b"\n":
            line = b""


def _tell(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.write(GO)
            process.stdin.flush()


def _await_end(process: subprocess.Popen[bytes], until: float, stopped: Callable[[], bool]) -> None:
    """Wait until the tool has ended; raises ProfilerFailed where it does not in time, or ends without a report."""
    while True:
        try:
            process.wait(GLANCE)
        except subprocess.TimeoutExpired:
            if stopped():
                raise ProfilerFailed("the profile was stopped") from None
            if monotonic() >= until:
                raise ProfilerFailed("Nsight Compute did not end in time and was killed") from None
        else:
            return


def _reason(process: subprocess.Popen[bytes], report: Path, otherwise: str) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING)
    errors = [line.partition("==ERROR==")[2].strip() for line in _text(report).splitlines() if "==ERROR==" in line]
    return f"Nsight Compute: {errors[0]}" if errors else otherwise


def _text(report: Path) -> str:
    try:
        return report.read_text("utf-8", "replace")
    except OSError:
        return ""
