"""Services in processes of their own, whose defaults are compiled once in a run however many of them start at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from app.cli.spawn import Started, started
from tests.support.waiting import until
from tilewise import Client

STARTING: Final = 120.0  # seconds at most until every default is verified


@contextmanager
def compiling_alone() -> Iterator[None]:
    """No other worker of this run is in such a block: what is compiled inside is found in the cache by the next one."""
    folder = Path(os.environ["TILEWISE_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def settled(data_dir: Path, key: str | None = None, **settings: str) -> Iterator[Started]:
    """A service on the OpenCL device that has verified all its defaults; `key` is one that may ask for that."""
    with ExitStack() as stack:
        with compiling_alone():
            running = stack.enter_context(started(data_dir, devices="opencl", **settings))
            with Client(running.url, key=key) as client:
                until(lambda: not client.readiness().pending, STARTING, each=0.05, meanwhile=running.log.read_text)
        yield running
