"""What this checkout's service does against another checkout's: both serve, and are measured in turn, pair after pair.

    python -m benchmarks.serving.pairs BEFORE [--pairs 10] [--seconds 2] [--only NAME ...] [--out FILE.json]

BEFORE is another checkout, with its own .venv. The service that does not have its turn is idle. Of each pair the order
is drawn. Figures are per second: rates, and reciprocals of the 99th percentile of the seconds that answers took. What
is told is the median of the pairs' ratios, after over before, with its 95 % interval by order statistics: over 1 is
better. The bars: the interval of a rate reaches 1 / 1.03 or more, that of a reciprocal 1 / 1.10.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from app.tuning.measure.racing import interval
from benchmarks.harness import Connection, Running, hammer, percentile, service
from benchmarks.serving.overhead import seconds_of, tuned

RESULT: Final = Path("benchmarks/results/serving/pairs.json")
BEST_CONFIG: Final = "/best-config?m=1024&n=1024&k=1024"
SIDE, CLIENTS = 4096, 64  # of the operand that is taken in; of those who ask for more than there is room for
RAW: Final = {"Content_Type": "application/octet-stream"}
Figures = dict[str, float]


async def best_config(port: int, seconds: float) -> Figures:
    """GET /best-config from 16 connections."""
    rate, latencies = await hammer(port, BEST_CONFIG, 16, seconds)
    return {"rate": rate, "reciprocal_p99": 1 / percentile(latencies, 0.99)}


async def smallest_product(port: int, seconds: float) -> Figures:
    """Products of 1x1x1, one after the other."""
    latencies = await _products(port, "/matmul?m=1&n=1&k=1", bytes(8), seconds)
    return {"rate": len(latencies) / sum(latencies), "reciprocal_p99": 1 / percentile(latencies, 0.99)}


async def ingest(port: int, seconds: float) -> Figures:
    """Products with a vector: next to all of it is 64 MiB that are taken in."""
    body = bytes(4 * SIDE * SIDE + 4 * SIDE)
    latencies = await _products(port, f"/matmul?m={SIDE}&n=1&k={SIDE}", body, seconds)
    return {"rate": 1 / median(latencies)}


async def overload(port: int, seconds: float) -> Figures:
    """Products of 128x128x128 from 64 clients who ask again at once, whatever the answer: those that are made."""
    until, made = perf_counter() + seconds, list[float]()
    body = bytes(4 * 2 * 128 * 128)

    async def client() -> None:
        connection = Connection(port)
        while (sent := perf_counter()) < until:
            reply = await connection.request("POST", "/matmul?m=128&n=128&k=128", body, **RAW)
            if reply.status == 200:
                made.append(perf_counter() - sent)
            elif reply.status not in {429, 503}:
                raise RuntimeError(f"a product answered {reply.status}: {reply.body[:200]!r}")
        connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return {"rate": len(made) / seconds, "reciprocal_p99": 1 / percentile(made, 0.99)}


async def tune(port: int, seconds: float) -> Figures:
    """A tune of 256x256x256: trials for each second that the job spends outside the processes that measure."""
    before = await seconds_of(port)
    job, _ = await tuned(port, 3 * seconds, serving=False)
    after = await seconds_of(port)
    outside = (after["total"] - before["total"]) - (after["inside"] - before["inside"])
    return {"rate": job["progress"]["done"] / outside}


MEASURES: Final[Mapping[str, Callable[[int, float], Coroutine[Any, Any, Figures]]]] = {
    "best_config": best_config,
    "smallest_product": smallest_product,
    "ingest": ingest,
    "overload": overload,
    "tune": tune,
}


async def _products(port: int, path: str, body: bytes, seconds: float) -> list[float]:
    """One client's products, one after the other, after one that is not counted; gives each one's seconds."""
    connection, latencies, until = Connection(port), list[float](), perf_counter() + seconds
    await connection.request("POST", path, body, **RAW)
    while (sent := perf_counter()) < until or not latencies:
        reply = await connection.request("POST", path, body, **RAW)
        if reply.status != 200:
            raise RuntimeError(f"a product answered {reply.status}: {reply.body[:200]!r}")
        latencies.append(perf_counter() - sent)
    connection.close()
    return latencies


def pairs(running: Mapping[str, Running], name: str, count: int, seconds: float, draw: random.Random) -> Figures:
    """The ratios of one measure's figures, after over before, with their intervals."""
    found: list[dict[str, Figures]] = []
    for _ in range(count):
        order = draw.sample([*running], len(running))
        found.append({side: asyncio.run(MEASURES[name](running[side].port, seconds)) for side in order})
        print(name, json.dumps(found[-1]), file=sys.stderr, flush=True)
    told: Figures = {}
    for figure in found[0]["after"]:
        ratios = [pair["after"][figure] / pair["before"][figure] for pair in found]
        low, high = interval(ratios)
        told |= {figure: median(ratios), f"{figure}_low": low, f"{figure}_high": high}
        told |= {f"{figure}_{side}": median(pair[side][figure] for pair in found) for side in running}
    return told


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=[*MEASURES])
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)  # noqa: S311 - it orders measurements
    report: dict[str, Any] = {"commit_before": _commit(arguments.before), "commit": _commit(Path())}
    report |= {"pairs": arguments.pairs, "cores": os.cpu_count(), "seed": arguments.seed}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running: dict[str, Running] = {}
        for side, checkout in (("before", arguments.before), ("after", None)):
            (data := Path(folder) / side).mkdir()
            running[side] = stack.enter_context(service(data, checkout=checkout))
        for name in arguments.only:
            report[name] = pairs(running, name, arguments.pairs, arguments.seconds, draw)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
