"""Services on one database, each in a process of its own, on a device that takes no time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import httpx

from tests.support.waiting import until

_ROOT: Final = Path(__file__).resolve().parents[3]


@dataclass
class NullService:
    """A running service; `attempts` are the jobs that its log says it has worked on."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def attempts(self, job_id: str) -> bool:
        """Whether it has tried a config for a job."""
        return f"attempt {job_id}" in self.log.read_text(errors="replace")

    def get(self, path: str, **params: object) -> httpx.Response:
        """What it answers."""
        return httpx.get(self.url + path, params={name: str(value) for name, value in params.items()}, timeout=30)

    def match(self, size: int) -> str:
        """How exact its answer for a square product is."""
        return str(self.get("/best-config", m=size, n=size, k=size).json()["match"])

    def tune(self, size: int, trials: int) -> str:
        """Order a tune of a square product; gives the job's id."""
        shape = {"m": size, "n": size, "k": size}
        body = {"shapes": [shape], "budget": {"trials": trials}, "kernels": ["tiled"], "strategy": "random"}
        answer = httpx.post(f"{self.url}/tune", json=body, timeout=30)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def state(self, job_id: str) -> str:
        """A job's state, as this service tells it."""
        return str(self.get(f"/jobs/{job_id}").json()["state"])

    def freeze(self) -> None:
        """Stop the process and its children."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Have them go on."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it outright; its children end with it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def null_service(folder: Path, database: str, **settings: str) -> Iterator[NullService]:
    """A service with its data in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = {"data_dir": str(folder), "database_url": database, "port": "0", "slab_bytes": str(2**26)}
    chosen = {"lease": "2", "idle_tuning": "off", "jobs": "5000"} | ours | settings
    env = {**os.environ, **{f"TILEWISE_{name.upper()}": value for name, value in chosen.items()}}
    log = folder / "log"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving.nulldevice", "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=env,
            cwd=_ROOT,
            start_new_session=True,
        )
    try:
        found = re.search(r"http://\S+", cast("IO[bytes]", process.stdout).readline().decode())
        assert found, log.read_text()
        yield NullService(found.group(), process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
        process.wait(60)
        for pipe in (process.stdin, process.stdout):
            cast("IO[bytes]", pipe).close()


@contextmanager
def null_services(folder: Path, database: str, count: int) -> Iterator[Sequence[NullService]]:
    """Several, whose kernels are verified."""
    with ExitStack() as stack:
        services = [stack.enter_context(null_service(folder / str(number), database)) for number in range(count)]
        for service in services:
            until(lambda service=service: service.get("/health/ready").status_code == 200, 60)  # type: ignore[misc]
        yield services
