"""The data path alone, on the null device: ingest and emit against bare sockets, latency against an empty route.

    python -m benchmarks.serving.wire.throughput [--mib 256] [--repeats 25] [--seconds 20] [--aborts 10000]
        [--unix] [--loop uvloop]

Both sides of every ratio are measured in turn, in one run, over the same kind of socket, in three services one after
the other, of which the median counts and all are told. Needs two idle cores. Bars that are missed end it with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import Running, start, stop, wait_ready
from benchmarks.serving.wire.aborts import aborts
from benchmarks.serving.wire.latency import latency
from benchmarks.serving.wire.process import Cost, Watched

RESULT = Path("benchmarks/results/serving/wire.json")
SERVICES = 3  # processes, one after the other, of which the one in the middle counts
HEAD = "POST /matmul?m={m}&n={n}&k={k} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
Connect = Callable[[], socket.socket]


@dataclass(frozen=True)
class Sides:
    """The two servers, and how a client reaches them."""

    ours: Connect
    bare: Connect
    service: Running
    sockets: Running


@contextmanager
def sides(folder: Path, given: argparse.Namespace, slab: int, bare_bytes: int) -> Iterator[Sides]:
    """The service on the null device, and the bare sockets."""
    environment = {
        "TILEWISE_DATA_DIR": str(folder),
        "TILEWISE_SLAB_BYTES": str(slab),
        "TILEWISE_MAX_BODY_BYTES": str(slab),
        "TILEWISE_LOG_LEVEL": "warning",
    }
    paths = [folder / "service.sock", folder / "bare.sock"] if given.unix else []
    if paths:
        environment["TILEWISE_UDS"] = str(paths[0])
    log = folder / "server.log"
    service = start(["-m", "benchmarks.serving.nulldevice", "--loop", given.loop], log, environment)
    sockets = start(
        [
            "-m",
            "benchmarks.serving.wire.peers",
            "sockets",
            str(bare_bytes),
            *(["--uds", str(paths[1])] if paths else []),
        ],
        log,
    )
    try:
        wait_ready(service)
        if paths:
            yield Sides(lambda: unix(paths[0]), lambda: unix(paths[1]), service, sockets)
        else:
            yield Sides(lambda: tcp(service.port), lambda: tcp(sockets.port), service, sockets)
    finally:
        stop(service)
        sockets.process.kill()
        sockets.process.wait()


def tcp(port: int) -> socket.socket:
    """A connection to a port of loopback."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=600)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def unix(path: Path) -> socket.socket:
    """A connection to a Unix socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def head_of(connection: socket.socket) -> tuple[int, bytes, float]:
    """An answer's length, what came of its body with its head, and when its first byte came."""
    found = connection.recv(2**16)
    began = perf_counter()
    while b"\r\n\r\n" not in found:
        found += connection.recv(2**16)
    head, _, rest = found.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(found.decode(errors="replace"))
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next(int(value) for name, _, value in lines if name == b"content-length"), rest, began


def product(connection: socket.socket, m: int, n: int, k: int, sink: memoryview, *parts: memoryview) -> list[float]:
    """One product: seconds from the request's first byte to the answer's first, and from there to its last."""
    began = perf_counter()
    head = HEAD.format(m=m, n=n, k=k) + f"Content-Length: {sum(map(len, parts))}\r\n\r\n"
    connection.sendall(head.encode())
    for part in parts:
        connection.sendall(part)
    length, rest, first = head_of(connection)
    read(connection, length - len(rest), sink)
    return [first - began, perf_counter() - first]


def read(connection: socket.socket, nbytes: int, sink: memoryview) -> None:
    """So many bytes, into the same memory over and over."""
    while nbytes:
        count = connection.recv_into(sink[: min(len(sink), nbytes)])
        if not count:
            raise RuntimeError("the answer is not whole")
        nbytes -= count


def ingest(both: Sides, nbytes: int, repeats: int) -> dict[str, Any]:
    """A body of so many bytes, whose product is small."""
    half = np.ones(nbytes // 2, np.uint8).data
    rows, k, sink = 32, nbytes // 2 // 4 // 32, memoryview(bytearray(2**20))
    with both.ours() as ours, both.bare() as bare:
        product(ours, rows, rows, k, sink, half, half)  # its memory is there from now on
        watched, peer = Watched(both.service.process.pid), Watched(both.sockets.process.pid)
        seconds: list[tuple[float, float]] = []
        for _ in range(repeats):
            with watched.counted():
                mine = product(ours, rows, rows, k, sink, half, half)[0]
            with peer.counted():
                began = perf_counter()
                bare.sendall(b"i")
                bare.sendall(half)
                bare.sendall(half)
                bare.recv(1)
                seconds.append((mine, perf_counter() - began))
    return compared(seconds, nbytes) | costs(watched.cost, peer.cost, nbytes, repeats)


def emit(both: Sides, nbytes: int, repeats: int) -> dict[str, Any]:
    """An answer of so many bytes, whose operands are small; from its first byte to its last."""
    n = int((nbytes // 4) ** 0.5)
    column, sink = np.ones(4 * n, np.uint8).data, memoryview(bytearray(2**22))
    with both.ours() as ours, both.bare() as bare:
        product(ours, n, n, 1, sink, column, column)
        watched, peer = Watched(both.service.process.pid), Watched(both.sockets.process.pid)
        seconds = []
        for _ in range(repeats):
            with watched.counted():
                mine = product(ours, n, n, 1, sink, column, column)[1]
            with peer.counted():
                bare.sendall(b"o")
                first = bare.recv(2**16)
                began = perf_counter()
                read(bare, nbytes - len(first), sink)
                seconds.append((mine, perf_counter() - began))
    return compared(seconds, nbytes) | costs(watched.cost, peer.cost, nbytes, repeats)


def compared(seconds: list[tuple[float, float]], nbytes: int) -> dict[str, Any]:
    """Medians of both sides, and the median of their ratios: 1 is as fast as the bare socket."""
    return {
        "gb_per_s": nbytes / 1e9 / median(mine for mine, _ in seconds),
        "bare_gb_per_s": nbytes / 1e9 / median(bare for _, bare in seconds),
        "ratio": median(bare / mine for mine, bare in seconds),
    }


def costs(ours: Cost, bare: Cost, nbytes: int, repeats: int) -> dict[str, Any]:
    """Processor time by the gigabyte, and memory beyond the slab as a share of the body."""
    return {
        "cpu_s_per_gb": ours.cpu / (repeats * nbytes / 1e9),
        "bare_cpu_s_per_gb": bare.cpu / (repeats * nbytes / 1e9),
        "memory_share": ours.growth / nbytes,
    }


def overlap(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """A product of 2 x 64 MiB into 64 MiB, on a device whose copies take time and on one whose do not."""
    n, walls = 4096, list[float]()
    half, sink = np.ones(4 * n * n, np.uint8).data, memoryview(bytearray(2**22))
    for rate in (0.0, given.copy_rate):
        environment = {"TILEWISE_DATA_DIR": str(folder / f"{rate:g}"), "TILEWISE_SLAB_BYTES": str(2**28)}
        arguments = ["-m", "benchmarks.serving.nulldevice", "--loop", given.loop, "--copy-rate", str(rate)]
        service = start(arguments, folder / "overlap.log", environment)
        try:
            wait_ready(service)
            with tcp(service.port) as connection:
                seconds = [sum(product(connection, n, n, n, sink, half, half)) for _ in range(given.repeats + 1)]
        finally:
            stop(service)
        walls.append(median(seconds[1:]))
    copies = 3 * len(half) / given.copy_rate
    shown = {"plain_s": walls[0], "copying_s": walls[1], "copies_s": copies}
    return shown | {"hidden": 1 - (walls[1] - walls[0]) / copies}


def in_services(way: Callable[[Sides], dict[str, Any]], given: argparse.Namespace, key: str) -> dict[str, Any]:
    """The figures in the service whose ratio is the median: they differ by the process more than by the request."""
    found, nbytes = [], given.mib * 2**20
    for _ in range(SERVICES):
        with tempfile.TemporaryDirectory() as folder, sides(Path(folder), given, 3 * nbytes, nbytes) as both:
            found.append(way(both))
    found.sort(key=lambda each: float(each[key]))
    return found[SERVICES // 2] | {f"{key}s": [each[key] for each in found]}


def missed(report: dict[str, Any]) -> list[str]:
    """Bars that are not met."""
    bars = {
        "ingest.ratio >= 0.9": report["ingest"]["ratio"] >= 0.9,
        "ingest.cpu_s_per_gb <= 0.5": report["ingest"]["cpu_s_per_gb"] <= 0.5,
        "ingest.memory_share <= 0.01": report["ingest"]["memory_share"] <= 0.01,
        "emit.ratio >= 0.8": report["emit"]["ratio"] >= 0.8,
        "latency.median_ratio <= 3": report["latency"]["median_ratio"] <= 3,
        "latency.p99_ratio <= 3": report["latency"]["p99_ratio"] <= 3,
        "aborts leave nothing": not report["aborts"]["left"],
        "a product after aborts is right": report["aborts"]["right"],
    }
    return [name for name, met in bars.items() if not met]


def main() -> None:
    """Measure, write, and say which bars are missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--aborts", type=int, default=10_000)
    parser.add_argument("--copy-rate", type=float, default=4e9, help="bytes a second of the device's copies")
    parser.add_argument("--unix", action="store_true")
    parser.add_argument("--loop", choices=("auto", "asyncio", "uvloop"), default="auto")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    nbytes = given.mib * 2**20
    report: dict[str, Any] = {"mib": given.mib, "socket": "unix" if given.unix else "tcp", "loop": given.loop}
    report["ingest"] = in_services(lambda both: ingest(both, nbytes, given.repeats), given, "ratio")
    report["emit"] = in_services(lambda both: emit(both, nbytes, given.repeats), given, "ratio")
    log = Path(os.devnull)
    report["latency"] = in_services(lambda both: latency(both.service.port, log, given.seconds), given, "p99_ratio")
    with tempfile.TemporaryDirectory() as folder, sides(Path(folder), given, 3 * nbytes, nbytes) as both:
        report["aborts"] = aborts(both.service, given.aborts)
    with tempfile.TemporaryDirectory() as folder:
        report["overlap"] = overlap(Path(folder), given)
    report["missed"] = missed(report)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if report["missed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
