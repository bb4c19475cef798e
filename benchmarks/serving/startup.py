"""Seconds from `tilewise serve` to live, to ready and to every default settled, with an empty and a warm cache.

    python -m benchmarks.serving.startup [--starts 7] [--cores 2]

Each start with an empty cache has a data folder of its own; those with a warm one share another, whose first start is
not counted. The service and its children are held to so many cores. Its bytecode is compiled, as pip leaves it: an
environment without it is refused, since compiling takes longer than starting. Writes
benchmarks/results/serving/startup.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from benchmarks.harness import Running, start, stop

RESULT = Path("benchmarks/results/serving/startup.json")
BARS = {"empty": 12.0, "warm": 3.0}
LONGEST = 180.0


def uncompiled() -> list[str]:
    """Modules of the service and of its libraries that have no bytecode."""
    specs = [importlib.util.find_spec(name) for name in ("app.main", "fastapi.routing", "sqlalchemy.orm")]
    return [spec.name for spec in specs if spec and not (spec.cached and Path(spec.cached).exists())]


def readiness(server: Running) -> tuple[bool, dict[str, Any]]:
    """Whether products are served, and what GET /health/ready says."""
    try:
        with urlopen(f"{server.url}/health/ready", timeout=5) as answer:  # noqa: S310 - our own address
            return True, json.load(answer)
    except HTTPError as refused:
        return False, json.load(refused)


def measured(data: Path) -> dict[str, Any]:
    """One start: seconds until it listens, until it is ready and until every default is settled."""
    data.mkdir(parents=True, exist_ok=True)
    environment = {"TILEWISE_DATA_DIR": str(data), "TILEWISE_CACHE_DIR": str(data / "cache")}
    began = perf_counter()
    server = start(["-P", "-m", "app.cli", "serve", "--port", "0"], data / "server.log", environment)
    try:
        seconds = {"live": perf_counter() - began}
        while perf_counter() - began < LONGEST:
            is_ready, told = readiness(server)
            if is_ready:
                seconds.setdefault("ready", perf_counter() - began)
                if not told["pending"]:
                    return seconds | {"settled": perf_counter() - began, "told": told}
            sleep(0.01)
    finally:
        stop(server)
    raise RuntimeError(f"the defaults were not settled within {LONGEST:g} s: {told}")


def summary(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and most of each figure, and what was degraded."""
    figures = {
        name: {"median": round(median(each), 3), "most": round(max(each), 3)}
        for name in ("live", "ready", "settled")
        if (each := [one[name] for one in starts])
    }
    return figures | {"starts": len(starts), "degraded": sum(one["told"]["status"] != "ready" for one in starts)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Seconds until a service is ready.")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--cores", type=int, default=2)
    asked = parser.parse_args()
    if missing := uncompiled():
        raise SystemExit(f"no bytecode of {', '.join(missing)}: run python -m compileall, as pip does")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])  # children inherit it
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        empty = [measured(root / f"empty-{number}") for number in range(asked.starts)]
        warm = [measured(root / "warm") for _ in range(asked.starts + 1)][1:]
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "empty": summary(empty), "warm": summary(warm)}
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    for cache, bar in BARS.items():
        settled = found[cache]["settled"]
        print(f"{cache} cache: settled in {settled['median']} s (most {settled['most']} s), the bar is {bar:g} s")


if __name__ == "__main__":
    main()
