"""Whether a budget is one: the wall time of tune jobs over their seconds, from 64^3 to 8192^3, or 422.

    python -m benchmarks.tuner.budget [--jobs 40] [--least-seconds 1] [--most-seconds 60] [--most-size 8192]
                                [--most-minutes 15] [--seed N]

Seconds are drawn log-uniformly, the jobs one after the other on a fresh service. A job holds where its wall time,
started_at to finished_at, is at most 1.1 times its seconds and one more.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.harness import Running, service
from benchmarks.tuner.jobs import ask, ended, order, told

RESULT = Path("benchmarks/results/tuner/budget.json")


def wall(job: dict[str, Any]) -> float:
    """Seconds from a job's start to its end."""
    begun, over = (datetime.fromisoformat(job[name]) for name in ("started_at", "finished_at"))
    return (over - begun).total_seconds()


def one(server: Running, generator: random.Random, least: float, most: float, size: int) -> dict[str, Any]:
    """Order one job and see it to its end."""
    seconds = round(least * (most / least) ** generator.random(), 1)
    asked = order(generator, seconds, size)
    status, answer = ask(server, "POST", "/tune", asked)
    row = {"order": told(asked), "seconds": seconds, "status": status}
    if status != 202:
        return row | {"code": answer["code"], "needed_seconds": answer.get("needed_seconds"), "holds": status == 422}
    job = ended(server, answer["id"])
    took = wall(job)
    best = (job["result"] or {}).get("best", [])
    row |= {"wall": round(took, 2), "state": job["state"], "holds": took <= 1.1 * seconds + 1}
    return row | {"trials": job["progress"]["done"], "answered": sum("kernel" in each for each in best)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What all jobs came to."""
    run = [row for row in rows if "wall" in row]
    return {
        "jobs": len(rows),
        "refused": len(rows) - len(run),
        "failed": sum(row["state"] != "succeeded" for row in run),
        "worst_ratio": max((row["wall"] / row["seconds"] for row in run), default=None),
        "worst_over": max((row["wall"] - 1.1 * row["seconds"] for row in run), default=None),
        "missed": [row for row in rows if not row["holds"]],
    }


def main() -> None:
    """Run all jobs, print each, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--least-seconds", type=float, default=1.0)
    parser.add_argument("--most-seconds", type=float, default=60.0)
    parser.add_argument("--most-size", type=int, default=8192)
    parser.add_argument("--most-minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    asked = parser.parse_args()
    print("seed", asked.seed, flush=True)
    generator = random.Random(asked.seed)  # noqa: S311  no secret: which jobs there are
    started, rows = perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), within=300) as server:
        while len(rows) < asked.jobs and perf_counter() - started < 60 * asked.most_minutes:
            rows.append(one(server, generator, asked.least_seconds, asked.most_seconds, asked.most_size))
            print(json.dumps(rows[-1]), flush=True)
    found = {"seed": asked.seed, **summary(rows), "rows": rows}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}, indent=1))
    raise SystemExit(1 if found["missed"] else 0)


if __name__ == "__main__":
    main()
