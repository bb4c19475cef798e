"""Ten times more products than can be made: what is still made, how fast the others are refused, what memory does.

    python -m benchmarks.serving.overload [--rounds 3] [--seconds 60] [--peak 15] [--side 1024] [--launch SECONDS]

The device is this machine's processor, or with --launch one whose products take so many seconds and nothing of the
processor, which the service and its clients then have to themselves, as beside a GPU.

A round is first the peak, from a few clients that each wait for their answer; then an open loop at ten times that:
requests leave by the clock, each on a connection of its own, whatever became of those before; then the peak once more.
Goodput, which counts products that are right, is held against the mean of the two peaks, for the machine may have
become slower or faster; what counts is the median of the rounds. As curl does with a body of more than a mebibyte, a
client sends its head with Expect: 100-continue, and its body once it is asked for. Memory is the service's and its
children's own, beside the slab, which has a size of its own. A first storm, which is not counted, warms all of it up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import uvloop

from benchmarks.harness import percentile, service
from benchmarks.serving.overload_clients import Seen, Work, closed, opened
from benchmarks.serving.wire.process import anonymous, children

RESULTS = Path("benchmarks/results/serving")
QUIET = 0.2  # of a phase at its start that is not counted: queues fill, pages are touched
WARMING, WARM = 300.0, 15.0  # requests a second, and for how long: threads are started, and all of the slab is touched
SETTLED = 3.0  # seconds in which the service finds that nobody waits for what it had taken in
FLAT = 8 * 2**20  # bytes that the middle of the last third may be above that of the first


@contextmanager
def watching(pid: int, seen: Seen) -> Iterator[None]:
    """Note the memory of the service and its children twice a second inside the block."""
    pids = [pid, *children(pid)]  # a thread for each product that waits would have to be asked for its children again

    async def look() -> None:
        while True:
            seen.memory.append(sum(map(anonymous, pids)))
            await asyncio.sleep(0.5)

    task = asyncio.get_running_loop().create_task(look())
    try:
        yield
    finally:
        task.cancel()


def pace(made: list[float], started: float, seconds: float) -> float:
    """Products a second after the quiet start."""
    begin, end = started + QUIET * seconds, started + seconds
    return sum(begin <= when <= end for when in made) / (end - begin)


def growth(memory: list[int]) -> int:
    """Bytes that the median of the last third is above that of the first, after the quiet start."""
    counted = memory[int(QUIET * len(memory)) :]
    third = max(1, len(counted) // 3)
    return int(np.median(counted[-third:]) - np.median(counted[:third]))


async def peak_of(port: int, work: Work, seen: Seen, arguments: argparse.Namespace) -> float:
    """Products a second, of clients that wait for their answers."""
    started = perf_counter()
    await closed(port, work, seen, arguments.clients, arguments.peak)
    return pace(seen.made, started, arguments.peak)


async def storm(port: int, pid: int, work: Work, arguments: argparse.Namespace) -> dict[str, Any]:
    """One round: the peak, the overload, the peak, and what is to be said of them."""
    calm, rough = Seen(), Seen()
    before = await peak_of(port, work, calm, arguments)
    started = perf_counter()
    with watching(pid, rough):
        await opened(port, work, rough, arguments.times * before, arguments.seconds)
    goodput = pace(rough.made, started, arguments.seconds)
    await asyncio.sleep(SETTLED)
    after = await peak_of(port, work, calm, arguments)
    refused = sorted(rough.refused) or [0.0]
    return {
        "peaks_per_second": [before, after],
        "offered_per_second": arguments.times * before,
        "goodput_per_second": goodput,
        "goodput_of_peak": goodput / ((before + after) / 2),
        "answers": dict(sorted(rough.statuses.items())),
        "not_sent": rough.late,
        "wrong": calm.wrong + rough.wrong,
        "refusal_p50_ms": 1e3 * percentile(refused, 0.5),
        "refusal_p99_ms": 1e3 * percentile(refused, 0.99),
        "refusal_max_ms": 1e3 * refused[-1],
        "refusal_read_max_ms": 1e3 * max(rough.read, default=0.0),
        "clients_lag_max_ms": 1e3 * max(rough.lags),
        "retry_after": [min(rough.after, default=0), max(rough.after, default=0)],
        "memory_bytes": [min(rough.memory), max(rough.memory)],
        "memory_growth_bytes": growth(rough.memory),
    }


async def storms(port: int, pid: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every round, the median of their goodput, and the worst of all else."""
    work = Work.of(arguments.side, stamped=arguments.launch > 0)
    await closed(port, work, Seen(), 2, 3.0)
    await opened(port, work, Seen(), WARMING, WARM)
    await asyncio.sleep(SETTLED)
    rounds = [await storm(port, pid, work, arguments) for _ in range(arguments.rounds)]
    report = {
        "side": arguments.side,
        "launch_seconds": arguments.launch or None,
        "seconds": arguments.seconds,
        "goodput_of_peak": median(each["goodput_of_peak"] for each in rounds),
        "refusal_p50_ms": median(each["refusal_p50_ms"] for each in rounds),
        "refusal_p99_ms": median(each["refusal_p99_ms"] for each in rounds),
        "refusal_max_ms": max(each["refusal_max_ms"] for each in rounds),
        "memory_growth_bytes": max(each["memory_growth_bytes"] for each in rounds),
        "wrong": sum(each["wrong"] for each in rounds),
    }
    bars = {
        "goodput >= 95 % of peak": report["goodput_of_peak"] >= 0.95,
        "every refusal under 50 ms": report["refusal_max_ms"] < 50,
        "memory flat": report["memory_growth_bytes"] <= FLAT,
        "nothing wrong": not report["wrong"],
    }
    return report | {"bars": bars, "rounds": rounds}


def main() -> None:
    """Start a service, overload it, and write what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument("--peak", type=float, default=15.0, help="seconds for each peak")
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=4, help="clients that make the peak")
    parser.add_argument("--launch", type=float, default=0.0, help="seconds of a product on a device of its own")
    parser.add_argument("--out", type=Path, help="overload.json, or overload-null.json, beside the other results")
    arguments = parser.parse_args()
    out = arguments.out or RESULTS / ("overload-null.json" if arguments.launch else "overload.json")
    device = ["-m", "benchmarks.serving.nulldevice", "--launch", str(arguments.launch)] if arguments.launch else None
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), device) as served:
        report = uvloop.run(storms(served.port, served.process.pid, arguments))
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if not all(report["bars"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
