"""Many clients at once, on the null device: threads against the event loop and a bare threaded socket server.

    python -m benchmarks.serving.wire.many [--clients 8] [--mib 64] [--seconds 4] [--rounds 10] [--threads N]

One request is a product of two operands of so many MiB and an answer of as many. Each client is a process. Both
services, TILEWISE_TRANSFER_THREADS as it is by default (or N) and 0, and the socket server run throughout; in a round
each is loaded in turn, by all clients and by one, and small products are timed beside the clients of both services.
Ratios are of one round, their intervals the median's 95 %. The bars are for 16 cores; those that are missed end it
with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import comb, isqrt
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any, Final

import numpy as np

from benchmarks.harness import Running, percentile, start, stop, wait_ready
from benchmarks.serving.wire.throughput import HEAD, head_of, tcp

RESULT: Final = Path("benchmarks/results/serving/wire-many.json")
SIDES: Final = ("threads", "loop", "bare")
_LEAD: Final = 1.5  # seconds in which a client's interpreter starts, before the clients begin together
_SMALL: Final = (1, 64)
_GAP: Final = 0.002  # seconds between small products


@dataclass(frozen=True)
class Load:
    """What one round's clients are told."""

    clients: int
    nbytes: int
    seconds: float


@contextmanager
def servers(folder: Path, load: Load, threads: int | None) -> Iterator[dict[str, Running]]:
    """Both services, whose slabs have room for twice the clients, and the bare server."""
    slab, running = (2 * load.clients + 2) * 3 * load.nbytes, dict[str, Running]()
    try:
        for side in ("threads", "loop"):
            environment = {
                "TILEWISE_DATA_DIR": str(folder / side),
                "TILEWISE_SLAB_BYTES": str(slab),
                "TILEWISE_MAX_BODY_BYTES": str(slab),
                "TILEWISE_LOG_LEVEL": "warning",
            }
            chosen = 0 if side == "loop" else threads
            environment |= {} if chosen is None else {"TILEWISE_TRANSFER_THREADS": str(chosen)}
            running[side] = start(["-m", "benchmarks.serving.nulldevice"], folder / "server.log", environment)
            wait_ready(running[side])
        sockets = ["-m", "benchmarks.serving.wire.peers", "threads", str(load.nbytes)]
        running["bare"] = start(sockets, folder / "server.log")
        yield running
    finally:
        for server in running.values():
            stop(server)


def rate(side: str, port: int, load: Load) -> float:
    """Gigabytes a second that all clients together move."""
    return sum(float(found["rate"]) for found in _ended(_begun(side, port, load)))


def rate_and_small(side: str, port: int, load: Load) -> tuple[float, list[float]]:
    """The same, and the seconds of small products beside them."""
    clients = _begun(side, port, load)
    sleep(_LEAD)
    small = _small(port, load.seconds)
    return sum(float(found["rate"]) for found in _ended(clients)), small


def _begun(side: str, port: int, load: Load) -> list[subprocess.Popen[str]]:
    told = [side, str(port), str(load.nbytes), str(monotonic() + _LEAD), str(load.seconds)]
    command = [sys.executable, "-m", "benchmarks.serving.wire.many", "client", *told]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(load.clients)]


def _ended(clients: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    outputs = [client.communicate(timeout=120)[0] for client in clients]
    if any(client.returncode for client in clients):
        raise RuntimeError("a client failed")
    return [json.loads(output) for output in outputs]


def _small(port: int, seconds: float) -> list[float]:
    """Seconds of small products, one after the other, 1 x 1 and 64 x 64 in turn."""
    found, until = list[float](), monotonic() + seconds
    with tcp(port) as connection:
        requests = [
            HEAD.format(m=n, n=n, k=n).replace("\r\n", f"\r\nContent-Length: {8 * n * n}\r\n", 1) for n in _SMALL
        ]
        bodies = [request.encode() + b"\r\n" + bytes(8 * n * n) for request, n in zip(requests, _SMALL, strict=True)]
        while monotonic() < until:
            for body in bodies:
                began = monotonic()
                connection.sendall(body)
                _received(connection)
                found.append(monotonic() - began)
                sleep(_GAP)
    return found


def _received(connection: socket.socket) -> None:
    length, rest, _ = head_of(connection)
    left = length - len(rest)
    while left:
        left -= len(connection.recv(left))


def client(side: str, port: int, nbytes: int, begin: float, seconds: float) -> dict[str, float]:
    """One client: products one after the other, from `begin` on for so many seconds."""
    n, operand, sink = isqrt(nbytes // 4), np.ones(nbytes, np.uint8).data, memoryview(bytearray(nbytes))
    head = HEAD.format(m=n, n=n, k=n) + f"Content-Length: {2 * nbytes}\r\n\r\n"
    with tcp(port) as connection:
        sleep(max(0.0, begin - monotonic()))
        began, products = monotonic(), 0
        while (took := monotonic() - began) < seconds:
            connection.sendall(b"p" if side == "bare" else head.encode())
            connection.sendall(operand)
            connection.sendall(operand)
            at = 0
            if side != "bare":
                _, rest, _ = head_of(connection)
                at = len(rest)
            while at < nbytes:
                at += connection.recv_into(sink[at:], 0, socket.MSG_WAITALL) or nbytes
            products += 1
    return {"rate": products * 3 * nbytes / 1e9 / took}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's 95 % interval by order statistics; the extremes of fewer than six values."""
    ordered, n = sorted(values), len(values)
    rank, tail = 0, 2 * 0.5**n
    while tail + 2 * comb(n, rank + 1) * 0.5**n <= 0.05:
        rank += 1
        tail += 2 * comb(n, rank) * 0.5**n
    return ordered[rank], ordered[n - 1 - rank]


def compared(mine: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """The median of the rounds' ratios, and its interval."""
    ratios = [one / two for one, two in zip(mine, other, strict=True)]
    return {"ratio": median(ratios), "interval": interval(ratios)}


def measured(running: dict[str, Running], load: Load, rounds: int) -> dict[str, Any]:
    """All rounds; the first of them warms and is not counted."""
    many, one = ({side: list[float]() for side in SIDES} for _ in range(2))
    small = {side: list[list[float]]() for side in SIDES[:2]}
    alone = Load(1, load.nbytes, load.seconds / 2)
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            port = running[side].port
            found, beside = (rate(side, port, load), []) if side == "bare" else rate_and_small(side, port, load)
            single = rate(side, port, alone)
            if number:
                many[side].append(found)
                one[side].append(single)
            if number and side != "bare":
                small[side].append(beside)
    return reported(many, one, small)


def reported(
    many: dict[str, list[float]], one: dict[str, list[float]], small: dict[str, list[list[float]]]
) -> dict[str, Any]:
    """Figures of all rounds by side, and the ratios between sides."""
    report: dict[str, Any] = {}
    for name, rates in (("many", many), ("one", one)):
        report[name] = {
            "gb_per_s": {side: median(rates[side]) for side in SIDES},
            "against_loop": compared(rates["threads"], rates["loop"]),
            "against_bare": compared(rates["threads"], rates["bare"]),
        }
    for name, share in (("median", 0.5), ("p99", 0.99)):
        values = {side: [1e3 * percentile(found, share) for found in small[side]] for side in small}
        ratio = compared(values["threads"], values["loop"])
        report[f"small_{name}_ms"] = {side: median(values[side]) for side in values} | ratio
    return report


def missed(report: dict[str, Any]) -> list[str]:
    """Bars that are not met."""
    bars = {
        "many >= 0.7 of bare": report["many"]["against_bare"]["ratio"] >= 0.7,
        "many >= 3 of the event loop": report["many"]["against_loop"]["ratio"] >= 3,
        "one not slower: interval reaches 1 / 1.03": report["one"]["against_loop"]["interval"][1] >= 1 / 1.03,
        "small median: interval reaches 1.03": report["small_median_ms"]["interval"][0] <= 1.03,
        "small p99: interval reaches 1.10": report["small_p99_ms"]["interval"][0] <= 1.10,
    }
    return [name for name, met in bars.items() if not met]


def main() -> None:
    """Measure, write, and say which bars are missed."""
    if sys.argv[1:2] == ["client"]:
        side, *numbers = sys.argv[2:]
        print(json.dumps(client(side, int(numbers[0]), int(numbers[1]), float(numbers[2]), float(numbers[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--mib", type=int, default=64, help="of an operand: a square of a power of two")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    load = Load(given.clients, given.mib * 2**20, given.seconds)
    told = {"cores": len(os.sched_getaffinity(0)), "clients": given.clients, "mib": given.mib, "rounds": given.rounds}
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder), load, given.threads) as running:
        report = told | {"threads": given.threads} | measured(running, load, given.rounds)
    report["missed"] = missed(report)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if report["missed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
