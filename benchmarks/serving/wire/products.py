"""Products a second that many clients get of one device and of all, against a bare threaded socket server.

    python -m benchmarks.serving.wire.products [--devices cuda] [--clients 8] [--mib 64] [--seconds 4] [--rounds 5]

A product is of two float32 squares of so many MiB: 64 MiB are 4096^3. Each client is a process with a connection. In a
round the service with the first device alone, the one with all of them, and the socket server, which only receives and
sends as many bytes, are loaded in turn. Bars that are missed end it with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.harness import Running, start, stop, wait_ready
from benchmarks.serving.wire.many import Load, interval, rate

RESULT: Final = Path("benchmarks/results/serving/wire-products.json")
SIDES: Final = ("one", "all", "bare")
_BAR: Final = {"one": 60.0, "all": 100.0}  # products a second that do whatever the sockets could carry
_SHARE: Final = 0.8  # of the products that the sockets could carry


@contextmanager
def servers(folder: Path, load: Load, devices: str) -> Iterator[dict[str, Running]]:
    """The services, whose slabs have room for twice the clients, and the bare server."""
    slab, running = (2 * load.clients + 2) * 3 * load.nbytes, dict[str, Running]()
    first = devices if ":" in devices else f"{devices}:0"
    try:
        for side, shown in (("one", first), ("all", devices)):
            environment = {
                "TILEWISE_DATA_DIR": str(folder / side),
                "TILEWISE_DEVICES": shown,
                "TILEWISE_SLAB_BYTES": str(slab),
                "TILEWISE_MAX_BODY_BYTES": str(slab),
                "TILEWISE_LOG_LEVEL": "warning",
            }
            log = folder / f"{side}.log"
            running[side] = start(["-m", "app.cli", "serve", "--port", "0"], log, environment)
            wait_ready(running[side], 180)
        sockets = ["-m", "benchmarks.serving.wire.peers", "threads", str(load.nbytes)]
        running["bare"] = start(sockets, folder / "bare.log")
        yield running
    finally:
        for server in running.values():
            stop(server)


def measured(running: dict[str, Running], load: Load, rounds: int) -> dict[str, Any]:
    """Products a second of every side; the first round warms and is not counted."""
    found = {side: list[float]() for side in SIDES}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            products = rate("bare" if side == "bare" else "threads", running[side].port, load) * 1e9 / 3 / load.nbytes
            if number:
                found[side].append(products)
    return {
        "products_per_s": {side: median(found[side]) for side in SIDES},
        "intervals": {side: interval(found[side]) for side in SIDES},
        "of_bare": {
            side: median(mine / bare for mine, bare in zip(found[side], found["bare"], strict=True)) for side in _BAR
        },
        "rounds": found,
    }


def missed(report: dict[str, Any]) -> list[str]:
    """Sides that neither reach their share of the sockets' products nor their own number."""
    told, share = report["products_per_s"], report["of_bare"]
    return [side for side, least in _BAR.items() if told[side] < least and share[side] < _SHARE]


def main() -> None:
    """Measure, write, and say which bars are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64, help="of an operand: a square of a power of two")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    load = Load(given.clients, given.mib * 2**20, given.seconds)
    told = {"cores": len(os.sched_getaffinity(0)), "clients": given.clients, "mib": given.mib, "devices": given.devices}
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder), load, given.devices) as running:
        report = told | measured(running, load, given.rounds)
    report["missed"] = missed(report)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "rounds"}, indent=1))
    if report["missed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
