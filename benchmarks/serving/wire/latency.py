"""Open loop: requests are sent when it is their time, whether or not those before them have been answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.harness import Connection, percentile, start, stop

RATE = 500.0
POOL = 16
ROUND = 1.0  # seconds of each side in turn
BODY = b"\0\0\x80\x3f\0\0\0\x40"  # 1 and 2 as float32


def latency(port: int, log: Path, seconds: float) -> dict[str, Any]:
    """A 1 x 1 product against an empty POST route, in turn."""
    route = start(["-m", "benchmarks.serving.wire.peers", "route"], log)
    try:
        return asyncio.run(_both(port, route.port, seconds))
    finally:
        stop(route)


async def _both(port: int, other: int, seconds: float) -> dict[str, Any]:
    paths = {"product": (port, "/matmul?m=1&n=1&k=1"), "empty": (other, "/empty")}
    pools = {name: [Connection(number) for _ in range(POOL)] for name, (number, _) in paths.items()}
    seen: dict[str, list[float]] = {name: [] for name in paths}
    for turn in range(1 + max(1, round(seconds / ROUND / 2))):
        for name, (_, path) in paths.items():
            found = await _round(pools[name], path, ROUND)
            seen[name] += found if turn else []
    report: dict[str, Any] = {"rate": RATE, "requests": {name: len(values) for name, values in seen.items()}}
    for name, share in (("median", 0.5), ("p99", 0.99)):
        values = {side: 1e3 * percentile(found, share) for side, found in seen.items()}
        report |= {f"{side}_{name}_ms": value for side, value in values.items()}
        report[f"{name}_ratio"] = values["product"] / values["empty"]
    return report


async def _round(pool: list[Connection], path: str, seconds: float) -> list[float]:
    """Seconds from each request's time to its answer."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in pool:
        free.put_nowait(connection)
    began, found = perf_counter(), list[float]()

    async def one(due: float) -> None:
        connection = await free.get()
        reply = await connection.request("POST", path, BODY, Content_Type="application/octet-stream")
        found.append(perf_counter() - due)
        free.put_nowait(connection)
        if reply.status != 200:
            raise RuntimeError(f"{path} answered {reply.status}: {reply.body[:200]!r}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(round(RATE * seconds)):
            due = began + number / RATE
            await asyncio.sleep(due - perf_counter())
            tasks.create_task(one(due))
    return found
