"""256 clients at once mixing the three main paths: every product checked, every error counted by its status.

    python -m benchmarks.serving.load [--clients 256] [--seconds 60]

A 429 or a 503 with Retry-After is the service saying "later"; anything else that is not a success is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import Connection, Reply, percentile, service

RESULT = Path("benchmarks/results/serving/load.json")
SHAPES = ((17, 33, 65), (64, 64, 64), (128, 96, 160), (1, 256, 256))


async def product(connection: Connection, rng: np.random.Generator) -> tuple[Reply, bool]:
    """One product by octet-stream, compared with NumPy's."""
    m, n, k = SHAPES[rng.integers(len(SHAPES))]
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    path = f"/matmul?m={m}&n={n}&k={k}"
    body = a.tobytes() + b.tobytes()
    reply = await connection.request("POST", path, body, Content_Type="application/octet-stream")
    if reply.status != 200:
        return reply, True
    c = np.frombuffer(reply.body, np.float32).reshape(m, n)
    reference = a.astype(np.float64) @ b
    return reply, bool(np.linalg.norm(c - reference) <= 1e-5 * np.linalg.norm(reference))


async def client(port: int, seed: int, until: float, seen: Counter[str], wrong: list[str], slow: list[float]) -> None:
    """One client: mostly answers and products, now and then a tune."""
    chance, rng, connection = random.Random(seed), np.random.default_rng(seed), Connection(port)  # noqa: S311
    while (sent := perf_counter()) < until:
        kind, right = chance.choices(("best", "product", "tune"), (6, 6, 1))[0], True
        if kind == "best":
            reply = await connection.request("GET", f"/best-config?m={chance.randint(1, 4096)}&n=512&k=512")
        elif kind == "product":
            reply, right = await product(connection, rng)
        else:
            size = chance.choice((16, 24, 32, 48))
            body = json.dumps({"shapes": [{"m": size, "n": size, "k": size}], "budget": {"trials": 4}}).encode()
            reply = await connection.request("POST", "/tune", body, Content_Type="application/json")
        later = reply.status in {429, 503} and "retry-after" in reply.headers
        seen[f"{kind} {reply.status}"] += 1
        slow.append(perf_counter() - sent)
        if not right or not (reply.status in {200, 202} or later) or b"database is locked" in reply.body:
            wrong.append(f"{kind} {reply.status} {reply.body[:200]!r}")
        if later:
            await asyncio.sleep(float(reply.headers["retry-after"]))
    connection.close()


async def storm(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """All clients at once."""
    seen, wrong, slow = Counter[str](), list[str](), list[float]()
    until = perf_counter() + seconds
    await asyncio.gather(*(client(port, seed, until, seen, wrong, slow) for seed in range(clients)))
    return {
        "clients": clients,
        "seconds": seconds,
        "answers": dict(sorted(seen.items())),
        "failures": len(wrong),
        "first_failures": wrong[:5],
        "p50_ms": percentile(slow, 0.5) * 1e3,
        "p99_ms": percentile(slow, 0.99) * 1e3,
    }


def main() -> None:
    """Start a service, storm it, and write what it answered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as served:
        report = asyncio.run(storm(served.port, arguments.clients, arguments.seconds))
        report["locked"] = (Path(folder) / "server.log").read_text().count("database is locked")
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if report["failures"] or report["locked"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
