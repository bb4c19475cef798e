"""Ten times more products than can be made: what is still made, how fast the others are refused, what memory does.

    python benchmarks/overload.py [--seconds 60] [--peak 20] [--times 10] [--side 1024] [--launch SECONDS]

The device is this machine's processor, or with --launch one whose products take so many seconds and nothing of the
processor, which the service and its clients then have to themselves, as beside a GPU.

First the peak, from a few clients that each wait for their answer; then an open loop at ten times that: requests leave
by the clock, each on a connection of its own, whatever became of those before. As curl does with a body of more than a
mebibyte, a client sends its head with Expect: 100-continue, and its body once it is asked for. Goodput counts products
that are right. Memory is the service's and its children's own, beside the slab, which has a size of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from time import perf_counter, time_ns
from typing import Any

import numpy as np
import uvloop
from harness import percentile, service
from wire_process import anonymous, children

RESULTS = Path("benchmarks/results")
OUTSTANDING = 2000  # requests that are under way at once at most, so that the clients' own memory is bounded
QUIET = 0.2  # of a phase at its start that is not counted: queues fill, pages are touched
SO_TIMESTAMPNS = 35  # asm-generic/socket.h: with what is read comes when its bytes arrived
STAMP = Struct("qq")  # seconds and nanoseconds
FLAT = 8 * 2**20  # bytes that the middle of the last third may be above that of the first


@dataclass
class Seen:
    """What became of requests: by status, when products came, how long refusals took; and memory by time.

    `refused` are the seconds until a refusal lay in its client's socket, `read` until a client had connected, sent, and
    come to read it. `lags` are how many seconds after the clock requests left: the clients' own delay.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    made: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    wrong: int = 0
    late: int = 0
    memory: list[int] = field(default_factory=list)


@dataclass
class Work:
    """One product: its request's head and body, and the C that is right."""

    head: bytes
    body: bytes
    c: bytes

    @classmethod
    def of(cls, side: int, *, stamped: bool) -> Work:
        """A product of two square matrices of small integers, which every kernel sums up exactly.

        C may be A's stamp instead, which is what the null device gives.
        """
        rng = np.random.default_rng(1)
        a, b = (rng.integers(-4, 5, (side, side)).astype(np.float32) for _ in "ab")
        body = a.tobytes() + b.tobytes()
        lines = [f"POST /matmul?m={side}&n={side}&k={side} HTTP/1.1", "Host: tilewise", "Expect: 100-continue"]
        lines += ["Content-Type: application/octet-stream", f"Content-Length: {len(body)}", "Connection: close", "", ""]
        stamp = np.full((side * side // 2,), a.reshape(-1).view(np.uint64)[0])
        stamp[-1] = a.reshape(-1).view(np.uint64)[-1]
        return cls("\r\n".join(lines).encode(), body, (stamp if stamped else a @ b).tobytes())


async def head_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """The status and headers of the next answer."""
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    return int(first.split()[1]), {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}


async def asked(port: int, head: bytes) -> tuple[socket.socket, float]:
    """A connection on which the answer to a head has begun, and how many seconds after the head was sent.

    The system says when its first bytes came: clients that have much to do come to read them later.
    """
    loop, come, connection = asyncio.get_running_loop(), asyncio.Event(), socket.socket()
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        sent = time_ns()
        connection.send(head)
        loop.add_reader(connection, come.set)
        try:
            await come.wait()
        finally:
            loop.remove_reader(connection)
        told = connection.recvmsg(1, socket.CMSG_SPACE(STAMP.size), socket.MSG_PEEK)[1]
        seconds, nanoseconds = STAMP.unpack(told[0][2])
    except BaseException:
        connection.close()
        raise
    return connection, (seconds * 10**9 + nanoseconds - sent) / 1e9


async def one(port: int, work: Work, seen: Seen) -> None:
    """One request on a connection of its own."""
    begun = perf_counter()
    connection, waited = await asked(port, work.head)
    reader, writer = await asyncio.open_connection(sock=connection, limit=2**20)
    try:
        status, headers = await head_of(reader)
        if status == 100:
            writer.write(work.body)
            status, headers = await head_of(reader)
        elif status in {429, 503}:
            seen.refused.append(waited)
            seen.read.append(perf_counter() - begun)
            seen.after.append(int(headers["retry-after"]))
        content = await reader.readexactly(int(headers["content-length"]))
        seen.statuses[str(status)] += 1
        if status == 200:
            seen.wrong += content != work.c
            seen.made.append(perf_counter())
    finally:
        writer.close()


async def tried(port: int, work: Work, seen: Seen) -> None:
    """One request, its failure counted where it has no answer."""
    try:
        await one(port, work, seen)
    except (OSError, asyncio.IncompleteReadError, KeyError) as error:
        seen.statuses[type(error).__name__] += 1


async def closed(port: int, work: Work, seen: Seen, clients: int, seconds: float) -> None:
    """So many clients, each waiting for its answer before it asks again."""
    until = perf_counter() + seconds

    async def client() -> None:
        while perf_counter() < until:
            await tried(port, work, seen)

    await asyncio.gather(*(client() for _ in range(clients)))


async def opened(port: int, work: Work, seen: Seen, rate: float, seconds: float) -> None:
    """So many requests a second, by the clock; those under way at the end are given up."""
    started, tasks = perf_counter(), set[asyncio.Task[None]]()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + number / rate - perf_counter()))
        seen.lags.append(perf_counter() - started - number / rate)
        if len(tasks) >= OUTSTANDING:
            seen.late += 1
            continue
        task = asyncio.create_task(tried(port, work, seen))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    left = list(tasks)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@contextmanager
def watching(pid: int, seen: Seen) -> Iterator[None]:
    """Note the memory of the service and its children four times a second inside the block."""

    async def look() -> None:
        while True:
            seen.memory.append(sum(anonymous(each) for each in (pid, *children(pid))))
            await asyncio.sleep(0.25)

    task = asyncio.get_running_loop().create_task(look())
    try:
        yield
    finally:
        task.cancel()


def pace(seen: Seen, started: float, seconds: float) -> float:
    """Products a second after the quiet start."""
    begin, end = started + QUIET * seconds, started + seconds
    return sum(begin <= when <= end for when in seen.made) / (end - begin)


def growth(memory: list[int]) -> int:
    """Bytes that the median of the last third is above that of the first, after the quiet start."""
    counted = memory[int(QUIET * len(memory)) :]
    third = max(1, len(counted) // 3)
    return int(np.median(counted[-third:]) - np.median(counted[:third]))


async def storm(port: int, pid: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The peak, the overload, and what is to be said of both."""
    work, calm, rough = Work.of(arguments.side, stamped=arguments.launch > 0), Seen(), Seen()
    await closed(port, work, Seen(), 2, 3.0)
    started = perf_counter()
    await closed(port, work, calm, arguments.clients, arguments.peak)
    peak = pace(calm, started, arguments.peak)
    started = perf_counter()
    with watching(pid, rough):
        await opened(port, work, rough, arguments.times * peak, arguments.seconds)
    goodput = pace(rough, started, arguments.seconds)
    slowest = max(rough.refused, default=0.0)
    return {
        "side": arguments.side,
        "launch_seconds": arguments.launch or None,
        "seconds": arguments.seconds,
        "peak_per_second": peak,
        "offered_per_second": arguments.times * peak,
        "goodput_per_second": goodput,
        "goodput_of_peak": goodput / peak,
        "answers": dict(sorted(rough.statuses.items())),
        "not_sent": rough.late,
        "wrong": calm.wrong + rough.wrong,
        "refusal_p50_ms": 1e3 * percentile(rough.refused, 0.5) if rough.refused else None,
        "refusal_p99_ms": 1e3 * percentile(rough.refused, 0.99) if rough.refused else None,
        "refusal_max_ms": 1e3 * slowest,
        "refusal_read_p99_ms": 1e3 * percentile(rough.read, 0.99) if rough.read else None,
        "refusal_read_max_ms": 1e3 * max(rough.read, default=0.0),
        "clients_lag_p99_ms": 1e3 * percentile(rough.lags, 0.99),
        "clients_lag_max_ms": 1e3 * max(rough.lags),
        "retry_after": [min(rough.after, default=0), max(rough.after, default=0)],
        "memory_bytes": [min(rough.memory), max(rough.memory)],
        "memory_growth_bytes": growth(rough.memory),
        "bars": {
            "goodput >= 95 % of peak": goodput >= 0.95 * peak,
            "every refusal under 50 ms": slowest < 0.05,
            "memory flat": growth(rough.memory) <= FLAT,
            "nothing wrong": calm.wrong + rough.wrong == 0,
        },
    }


def main() -> None:
    """Start a service, overload it, and write what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--peak", type=float, default=20.0, help="seconds for the peak")
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=4, help="clients that make the peak")
    parser.add_argument("--launch", type=float, default=0.0, help="seconds of a product on a device of its own")
    parser.add_argument("--out", type=Path, help="overload.json, or overload-null.json, beside the other results")
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / ("overload-null.json" if arguments.launch else "overload.json")
    device = ["benchmarks/nulldevice.py", "--launch", str(arguments.launch)] if arguments.launch else None
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), device) as served:
        report = uvloop.run(storm(served.port, served.process.pid, arguments))
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if not all(report["bars"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
