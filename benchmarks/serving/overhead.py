"""What a tune job costs beside its trials, and what it does to products: idle and tuning, one run.

    python -m benchmarks.serving.overhead [--seconds 20]

The share of a job's wall time that is compiling, verifying and measuring comes from the service's own metrics
(seconds inside and in all); the milliseconds a trial spends outside the children are their difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import Connection, percentile, service

RESULT = Path("benchmarks/results/serving/overhead.json")
SIZE = 128
_SECONDS = re.compile(r'^tilewise_tune_(|child_)seconds_total(?:\{where="(\w+)"\})? (\S+)$', re.MULTILINE)
_PLACES = {"": "total", "total": "total", "child_": "inside", "inside": "inside"}


async def products(port: int, seconds: float) -> list[float]:
    """One client's products, one after the other; gives each one's seconds."""
    connection, rng = Connection(port), np.random.default_rng(0)
    body = rng.standard_normal((2, SIZE, SIZE), np.float32).tobytes()
    until, latencies = perf_counter() + seconds, list[float]()
    while (sent := perf_counter()) < until:
        path = f"/matmul?m={SIZE}&n={SIZE}&k={SIZE}"
        reply = await connection.request("POST", path, body, Content_Type="application/octet-stream")
        if reply.status != 200:
            raise RuntimeError(f"a product answered {reply.status}: {reply.body[:200]!r}")
        latencies.append(perf_counter() - sent)
        await asyncio.sleep(0.01)
    connection.close()
    return latencies


async def tuned(port: int, seconds: float, *, serving: bool) -> tuple[dict[str, Any], list[float]]:
    """One tune job of 256x256x256, with products beside it or alone."""
    connection = Connection(port)
    order = {"shapes": [{"m": 256, "n": 256, "k": 256}], "budget": {"seconds": seconds}, "retune": True}
    reply = await connection.request("POST", "/tune", json.dumps(order).encode(), Content_Type="application/json")
    job = json.loads(reply.body)
    latencies = await products(port, seconds) if serving else []
    while job["state"] in {"queued", "running"}:
        await asyncio.sleep(0.2)
        job = json.loads((await connection.request("GET", f"/jobs/{job['id']}")).body)
    connection.close()
    return job, latencies


async def seconds_of(port: int) -> dict[str, float]:
    """The service's own count of seconds spent on jobs: inside the children, and in all.

    Until 23 November 2026 both were one metric's, with a label.
    """
    text = (await Connection(port).request("GET", "/metrics")).body.decode()
    return {_PLACES[where or child]: float(value) for child, where, value in _SECONDS.findall(text)}


async def measure(port: int, seconds: float) -> dict[str, Any]:
    """Idle products, then a tune alone, then products beside a tune."""
    await products(port, 1)
    idle = await products(port, seconds / 2)
    before = await seconds_of(port)
    job, _ = await tuned(port, seconds, serving=False)
    after = await seconds_of(port)
    _, busy = await tuned(port, seconds, serving=True)
    inside, total = after["inside"] - before["inside"], after["total"] - before["total"]
    done = job["progress"]["done"]
    return {
        "trials": done,
        "inside_share": inside / total,
        "outside_ms_a_trial": (total - inside) / done * 1e3,
        "idle_p50_ms": percentile(idle, 0.5) * 1e3,
        "idle_p99_ms": percentile(idle, 0.99) * 1e3,
        "tuning_p50_ms": percentile(busy, 0.5) * 1e3,
        "tuning_p99_ms": percentile(busy, 0.99) * 1e3,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as served:
        report = asyncio.run(measure(served.port, arguments.seconds))
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
