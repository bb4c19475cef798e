"""Tune one shape again and again: how far the vendor's figure is from one tune to the next, and what it does to ours.

Each tune is a job of its own in one service, as people run them; the figure is the result's, with its interval.

    python -m benchmarks.kernels.vendor [--tunes 20] [--seconds 3] [--shape 512]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from app.cli.spawn import started
from tilewise import Client, Shape

RESULT: Final = Path("benchmarks/results/kernels/vendor.json")
BAR: Final = 1.5


def tuned(client: Client, shape: Shape, seconds: float) -> dict[str, Any]:
    """One tune's figures of the vendor's library and of the winner."""
    job = client.tune([shape], seconds=seconds, retune=True, wait=True)
    (winner,) = (job.result or {})["best"]
    return {"vendor": winner["vendor"], "reason": winner["vendor_reason"], "best_ms": winner["median_ms"]}


def main() -> None:
    """Print each tune's figure and the largest ratio of two that follow each other; write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--shape", type=int, default=512)
    arguments = parser.parse_args()
    shape, rows = Shape(*3 * [arguments.shape]), []
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as service, Client(service.url) as client:
        while not client.ready():
            time.sleep(0.1)
        for number in range(arguments.tunes):
            rows.append(tuned(client, shape, arguments.seconds))
            vendor = rows[-1]["vendor"]
            told = f"{vendor['median_ms']:.3f} ms {vendor['ci95_ms']}" if vendor else rows[-1]["reason"]
            print(f"tune {number + 1}: vendor {told}, best {rows[-1]['best_ms']:.3f} ms", flush=True)
    if sum(row["vendor"] is not None for row in rows) < 2:
        raise SystemExit("the vendor's library was measured less than twice: give more --seconds")
    times = [row["vendor"]["median_ms"] for row in rows if row["vendor"]]
    steps = [max(one, other) / min(one, other) for one, other in pairwise(times)]
    within = sum(step <= BAR for step in steps)
    print(
        f"from one tune to the next: {within} of {len(steps)} within {BAR} times (bar: all), at most {max(steps):.2f}"
    )
    print(f"slowest over fastest of {len(times)} of {len(rows)}: {max(times) / min(times):.2f}")
    figures = {
        "shape": str(shape),
        "steps_within": within,
        "steps": len(steps),
        "largest_step": max(steps),
        "tunes": rows,
    }
    RESULT.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
