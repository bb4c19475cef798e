"""Good clients beside attackers who send and read slowly: what of the good ones' products is left.

python -m benchmarks.serving.faults.attackers [--rounds 6] [--seconds 10]

Rounds without and with attackers take turns. Eight clients, each on a connection of its own, ask for products as fast
as they are answered, and check them. 24 connections attack meanwhile, six in each way: heads of a byte at a time;
bodies a little faster than the least rate; large answers read as slowly; and sides closed early, in the middle of a
request or behind it. The bar: 95 % of the products. All run on the same cores: the attackers' own work counts too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import numpy as np

from benchmarks.harness import Connection, Running, percentile, service

RESULT: Final = Path("benchmarks/results/serving/attackers.json")
GOOD, EACH = 8, 6
BAR: Final = 0.95
SIDE: Final = 128
_LARGE: Final = 2048  # the side of a C that is read slowly, of 16 MiB
_WARMING: Final = 15.0  # seconds
_STEP: Final = 0.1  # seconds between an attacker's bytes
_RATE: Final = 20_000  # bytes a second; the least is 16,384
_RAW: Final = "application/octet-stream"


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose system holds few bytes that nobody has read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=connection, limit=4096)


def _head(path: str, nbytes: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {_RAW}", f"Content-Length: {nbytes}", "", ""]
    return "\r\n".join(lines).encode()


async def slow_head(port: int) -> None:
    """Send a head of a byte at a time, which has no end."""
    _, writer = await _connected(port)
    try:
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n")
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(_STEP)
    finally:
        writer.close()


async def slow_body(port: int) -> None:
    """Send the operands of a product a little faster than the least rate."""
    reader, writer = await _connected(port)
    try:
        writer.write(_head(f"/matmul?m={_LARGE}&n={_LARGE}&k={_LARGE}", 8 * _LARGE * _LARGE))
        while not reader.at_eof():
            writer.write(bytes(int(_RATE * _STEP)))
            await writer.drain()
            await asyncio.sleep(_STEP)
    finally:
        writer.close()


async def slow_read(port: int) -> None:
    """Ask for a large C, and read it a little faster than the least rate."""
    reader, writer = await _connected(port)
    try:
        writer.write(_head(f"/matmul?m={_LARGE}&n={_LARGE}&k=1", 8 * _LARGE) + bytes(8 * _LARGE))
        while await reader.read(int(_RATE * _STEP)):  # noqa: ASYNC110 - that is slow reading
            await asyncio.sleep(_STEP)
    finally:
        writer.close()


async def half_closed(port: int) -> None:
    """End one side in the middle of a request, or behind it, and wait for the other."""
    for part in (20, 300, 4096):
        reader, writer = await _connected(port)
        try:
            writer.write((_head("/matmul?m=16&n=16&k=16", 2048) + bytes(2048))[:part])
            writer.write_eof()
            while await reader.read(64):  # noqa: ASYNC110 - that is slow reading
                await asyncio.sleep(_STEP)
            await asyncio.sleep(_STEP)
        finally:
            writer.close()


ATTACKS: Final[tuple[Callable[[int], Awaitable[None]], ...]] = (slow_head, slow_body, slow_read, half_closed)


def attack(port: int, going: Event, ended: Event) -> None:
    """Attack while `going`, until it has `ended`: in a process of its own."""
    asyncio.run(_attack(port, going, ended))


async def _attack(port: int, going: Event, ended: Event) -> None:
    while not ended.is_set():
        if not going.is_set():
            await asyncio.sleep(0.05)
            continue
        tasks = [asyncio.create_task(_again(one, port)) for one in ATTACKS for _ in range(EACH)]
        while going.is_set():  # noqa: ASYNC110 - another process sets it
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _again(one: Callable[[int], Awaitable[None]], port: int) -> None:
    """Attack in one way, on a new connection where the last was closed."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            await one(port)
        await asyncio.sleep(_STEP)


async def goodput(port: int, seconds: float) -> tuple[float, list[float], Counter[str]]:
    """Right products a second of good clients, how long each took, and what else they were answered."""
    rng, until = np.random.default_rng(1), monotonic() + seconds
    a, b = (rng.integers(-4, 5, (SIDE, SIDE)).astype(np.float32) for _ in "ab")
    body, right = a.tobytes() + b.tobytes(), (a @ b).tobytes()
    path, took, others = f"/matmul?m={SIDE}&n={SIDE}&k={SIDE}", list[float](), Counter[str]()

    async def client() -> None:
        connection = Connection(port)
        while (began := monotonic()) < until:
            reply = await connection.request("POST", path, body, Content_Type=_RAW)
            if reply.status == 200 and reply.body == right:
                took.append(monotonic() - began)
            else:
                others[f"{reply.status}"] += 1
                await asyncio.sleep(0.01)
        connection.close()

    await asyncio.gather(*(client() for _ in range(GOOD)))
    return len(took) / seconds, took, others


def measured(server: Running, rounds: int, seconds: float) -> dict[str, Any]:
    """Rounds without and with attackers in turn: what there was of goodput."""
    going, ended = multiprocessing.Event(), multiprocessing.Event()
    attacking = multiprocessing.Process(target=attack, args=(server.port, going, ended))
    attacking.start()
    going.set()
    asyncio.run(goodput(server.port, _WARMING))  # what both ask for is compiled, and not counted
    rows = list[dict[str, Any]]()
    for number in range(rounds):
        row: dict[str, Any] = {}
        for name in ("without", "with") if number % 2 else ("with", "without"):
            (going.set if name == "with" else going.clear)()
            asyncio.run(asyncio.sleep(1.0))
            rate, took, others = asyncio.run(goodput(server.port, seconds))
            row[name] = {"rate": rate, "p99_ms": 1e3 * percentile(took, 0.99), "others": dict(others)}
        row["share"] = row["with"]["rate"] / row["without"]["rate"]
        rows.append(row)
        print(json.dumps(row), flush=True)
    ended.set()
    going.clear()
    attacking.join()
    return {"share": median(row["share"] for row in rows), "bar": BAR, "rounds": rows}


def main() -> None:
    """Measure, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        report = measured(server, arguments.rounds, arguments.seconds)
    report |= {"good": GOOD, "attackers": EACH * len(ATTACKS), "side": SIDE, "cores": os.cpu_count()}
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in ("share", "bar")}))


if __name__ == "__main__":
    main()
