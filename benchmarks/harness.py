"""What the serving benchmarks share: a real service in its own process, and a bare HTTP client on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from urllib.error import URLError
from urllib.request import urlopen

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class Running:
    """A server on loopback: its port and its process."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"


def start(
    command: Sequence[str], log: Path, environment: dict[str, str] | None = None, checkout: Path | None = None
) -> Running:
    """Start a server, of another checkout by its own .venv if one is given, and read the port that its output names."""
    with log.open("a") as errors:
        process = subprocess.Popen(
            [str(checkout / ".venv/bin/python") if checkout else sys.executable, *command],
            cwd=checkout,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    assert process.stdout is not None  # noqa: S101 - PIPE was asked for
    for line in process.stdout:
        if found := ADDRESS.search(line):
            return Running(int(found[1]), process)
    raise RuntimeError(f"the server ended: see {log}")


def stop(server: Running) -> None:
    """End a server this module started."""
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(10)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


def serve(data: Path, command: Sequence[str] | None = None, checkout: Path | None = None) -> Running:
    """Start the service, by another command where one is given, on a free port with its data in a folder."""
    environment = {"TILEWISE_DATA_DIR": str(data), "TILEWISE_LOG_LEVEL": "warning"}
    return start(command or ["-m", "app.cli", "serve", "--port", "0"], data / "server.log", environment, checkout)


def wait_ready(server: Running, seconds: float = 60) -> None:
    """Wait until products are served, and every default is verified or quarantined."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        try:
            with urlopen(f"{server.url}/health/ready", timeout=5) as answer:  # noqa: S310 - our own address
                if not json.load(answer)["pending"]:
                    return
        except (URLError, OSError):
            pass
        sleep(0.05)
    raise RuntimeError("the service did not become ready")


@contextmanager
def service(
    data: Path, command: Sequence[str] | None = None, within: float = 60, checkout: Path | None = None
) -> Iterator[Running]:
    """A ready service, ended with the block; it has so many seconds to become ready."""
    server = serve(data, command, checkout)
    try:
        wait_ready(server, within)
        yield server
    finally:
        stop(server)


@dataclass(frozen=True)
class Reply:
    """Status, headers in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One keep-alive connection; requests one after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """Send one request and read its answer; a connection that the server closed is opened again."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        content = await self._reader.readexactly(int(found.get("content-length", "0")))
        if found.get("connection") == "close":
            self.close()
        return Reply(int(head[0].split()[1]), found, content)

    def close(self) -> None:
        """Close without waiting."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def hammer(port: int, path: str, connections: int, seconds: float, **headers: str) -> tuple[float, list[float]]:
    """GET one path from many connections at once; gives requests a second and every latency in seconds."""
    until = perf_counter() + seconds
    latencies: list[float] = []

    async def one() -> None:
        connection = Connection(port)
        while (sent := perf_counter()) < until:
            reply = await connection.request("GET", path, b"", **headers)
            if reply.status != 200:
                raise RuntimeError(f"{path} answered {reply.status}: {reply.body[:200]!r}")
            latencies.append(perf_counter() - sent)
        connection.close()

    started = perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return len(latencies) / (perf_counter() - started), latencies
