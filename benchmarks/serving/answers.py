"""GET /best-config against an empty FastAPI route: 64 connections, the two servers in turn, one run.

python -m benchmarks.serving.answers [--seconds 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import hammer, percentile, service, start, stop

CONNECTIONS = 64
RESULT = Path("benchmarks/results/serving/answers.json")


def main() -> None:
    """Measure both in turn and write the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as served:
        empty = start(["-m", "benchmarks.serving.empty"], Path(folder) / "empty.log")
        targets = {"empty": (empty.port, "/empty"), "best_config": (served.port, "/best-config?m=1024&n=1024&k=1024")}
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
        try:
            for _ in range(arguments.rounds):
                for name, (port, path) in targets.items():
                    rate, latencies = asyncio.run(hammer(port, path, CONNECTIONS, arguments.seconds))
                    rounds[name].append({"rate": rate, "p99_ms": percentile(latencies, 0.99) * 1e3})
        finally:
            stop(empty)
    report: dict[str, Any] = {
        name: {key: median(figures[key] for figures in runs) for key in runs[0]} for name, runs in rounds.items()
    }
    report["rate_ratio"] = report["best_config"]["rate"] / report["empty"]["rate"]
    report["p99_ratio"] = report["best_config"]["p99_ms"] / report["empty"]["p99_ms"]
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
