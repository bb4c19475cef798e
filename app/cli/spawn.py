"""Starts a service in a process that ends with this one."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import app
from app.cli.exit_codes import Exit
from app.errors import NoDevice, StartRefused

STARTING: Final = 90.0
STOPPING: Final = 12.0


@dataclass(frozen=True)
class Started:
    """A service that listens: its address, its process, and the file of its log."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def started(data_dir: Path, **settings: str) -> Iterator[Started]:
    """Run `tilewise serve`, with its data in `data_dir`, on a free port of loopback if none is chosen; then stop it.

    `settings` are TILEWISE_* by their names in lower case. Raises NoDevice, and StartRefused with the log's end.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"the folder {data_dir} cannot be made: {error.strerror or error}") from error
    log = data_dir / "service.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            # -P: a folder named app where the user stands is not ours.
            [sys.executable, "-P", "-m", "app.cli", "serve", "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=_environment(data_dir, settings),
            start_new_session=True,  # Ctrl-C is for us: we stop it in our own order
        )
    try:
        yield Started(_wait_for_address(process, log), process, log)
    finally:
        _stop(process)


def _environment(data_dir: Path, settings: dict[str, str]) -> dict[str, str]:
    ours = ("TILEWISE_DATABASE_URL", "TILEWISE_URL", "TILEWISE_DATA_DIR")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    home = str(Path(app.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [home, inherited.get("PYTHONPATH")]))
    chosen = {f"TILEWISE_{name.upper()}": value for name, value in settings.items()}
    listening = {"TILEWISE_HOST": "127.0.0.1", "TILEWISE_PORT": "0"}
    return {**inherited, "PYTHONPATH": path, "TILEWISE_DATA_DIR": str(data_dir.resolve()), **listening, **chosen}


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    stdout = cast("IO[bytes]", process.stdout)
    until = time.monotonic() + STARTING
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, until - time.monotonic())):
            line = stdout.readline().decode()
            if not line:
                break
            if found := re.search(r"(?:https?|unix)://\S+", line):
                return found.group()
    raise _refusal(process, log)


def _refusal(process: subprocess.Popen[bytes], log: Path) -> NoDevice | StartRefused:
    _stop(process)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    text = "\n".join(lines[-8:]) or "it left no log"
    if process.returncode == Exit.NOBODY:
        return NoDevice(text)
    return StartRefused(f"the service did not start: {text}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, then kill; its children end with it."""
    process.terminate()
    try:
        process.wait(STOPPING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
