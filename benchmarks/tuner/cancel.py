"""How long a job that is cancelled takes to end, whatever it is at: tunes and products, small and large.

    python -m benchmarks.tuner.cancel [--jobs 40] [--within 12] [--most-size 4096] [--seed N]

Each job is cancelled at a random moment within so many seconds of its start. After each, a product must be right.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.harness import Running, percentile, service
from benchmarks.tuner.jobs import ENDED, ask, ended, order, told

RESULT = Path("benchmarks/results/tuner/cancel.json")


def tune(server: Running, generator: random.Random, most: int) -> tuple[str, str]:
    """Order a tune with seconds enough; gives its id, and what it is."""
    asked = order(generator, 600.0, most)
    while (answered := ask(server, "POST", "/tune", asked))[0] == 422:
        asked = order(generator, 600.0, most)
    return answered[1]["id"], told(asked)


def product(server: Running, generator: random.Random) -> tuple[str, str]:
    """Ask for a product by the slowest kernel, as a job; gives its id, and what it is."""
    size = generator.choice((900, 1500, 2200, 3000))
    operands = bytes(8 * size * size)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    head = {"Content-Type": "application/octet-stream", "Prefer": "respond-async"}
    connection.request("POST", f"/matmul?m={size}&n={size}&k={size}&kernel=naive", operands, head)
    job = json.loads(connection.getresponse().read())
    connection.close()
    return job["id"], f"product {size} by naive"


def is_right(server: Running) -> bool:
    """Whether a small product is right."""
    a = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    status, answer = ask(server, "POST", "/matmul", {"a": a.tolist(), "b": a.T.tolist()})
    return status == 200 and bool(np.array_equal(answer["c"], a @ a.T))


def one(server: Running, generator: random.Random, within: float, most: int) -> dict[str, Any]:
    """Start a job, cancel it at a random moment, and say how long it took to end."""
    job_id, what = product(server, generator) if generator.random() < 0.25 else tune(server, generator, most)
    while ask(server, "GET", f"/jobs/{job_id}")[1]["state"] == "queued":
        sleep(0.02)
    wait = within * generator.random() ** 2
    sleep(wait)
    before = ask(server, "GET", f"/jobs/{job_id}")[1]
    asked = perf_counter()
    _, answer = ask(server, "DELETE", f"/jobs/{job_id}")
    job = ended(server, job_id, 0.01)
    seconds = perf_counter() - asked
    row = {"job": what, "after": round(wait, 2), "phase": before["progress"]["phase"], "told": answer["state"]}
    over = before["state"] in ENDED
    return row | {"state": job["state"], "seconds": None if over else round(seconds, 3), "right": is_right(server)}


def main() -> None:
    """Cancel all jobs, print each, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--within", type=float, default=12.0)
    parser.add_argument("--most-size", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    asked = parser.parse_args()
    print("seed", asked.seed, flush=True)
    generator = random.Random(asked.seed)  # noqa: S311  no secret: which jobs there are
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), within=300) as server:
        while sum(row["seconds"] is not None for row in rows) < asked.jobs:
            rows.append(one(server, generator, asked.within, asked.most_size))
            print(json.dumps(rows[-1]), flush=True)
    took = [row["seconds"] for row in rows if row["seconds"] is not None]
    found = {"seed": asked.seed, "jobs": len(took), "median": percentile(took, 0.5), "most": max(took)}
    found["wrong"] = sum(not row["right"] for row in rows)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    raise SystemExit(1 if max(took) > 2 or found["wrong"] else 0)


if __name__ == "__main__":
    main()
