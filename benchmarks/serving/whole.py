"""A whole product through the wire, against the larger of what computes it and what moves its bytes alone.

    python -m benchmarks.serving.whole [--devices cuda] [--size 8192] [--dtype bfloat16] [--repeats 9]

Operands of SIZE x SIZE go to a service on loopback as octet-stream and C comes back; in turn with it a bare socket
moves as many bytes in and out. Rows of C at random are checked against float64. The bar is 1.15 times the larger of
both, and 10 ms; a miss ends the program with 1.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from app.dtypes import numpy_dtype
from app.tuning.verify.tolerance import tolerance
from benchmarks.harness import Running, start, stop, wait_ready
from benchmarks.serving.wire.throughput import read, tcp
from kernels.problem import Problem

RESULT = Path("benchmarks/results/serving/whole.json")
FACTOR, ALLOWANCE_MS = 1.15, 10.0
CHECKED = 32  # rows
HEAD = (
    "POST /matmul?m={n}&n={n}&k={n}&dtype={dtype} HTTP/1.1\r\nHost: localhost\r\n"
    "Content-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\r\n"
)
KERNEL = re.compile(rb"server-timing:[^\r]*\bkernel;dur=([\d.]+)")


@dataclass(frozen=True)
class Whole:
    """Medians in milliseconds, what the bar allows, and the relative L2 error of the rows that were checked."""

    device: str
    size: int
    dtype: str
    product_ms: float
    kernel_ms: float
    bare_ms: float
    allowed_ms: float
    relative_l2: float
    repeats: int

    @property
    def met(self) -> bool:
        """Whether the bar is."""
        return self.product_ms <= self.allowed_ms


@contextmanager
def servers(folder: Path, devices: str, nbytes: int) -> Iterator[tuple[Running, Running]]:
    """The service, and a bare socket whose buffer is one operand."""
    room = str(4 * nbytes + 2**24)
    environment = {"TILEWISE_DATA_DIR": str(folder), "TILEWISE_LOG_LEVEL": "warning", "TILEWISE_DEVICES": devices}
    environment |= {"TILEWISE_SLAB_BYTES": room, "TILEWISE_MAX_BODY_BYTES": room}
    log = folder / "server.log"
    service = start(["-m", "app.cli", "serve", "--port", "0"], log, environment)
    bare = start(["-m", "benchmarks.serving.wire.peers", "sockets", str(nbytes)], log)
    try:
        wait_ready(service, 180)
        yield service, bare
    finally:
        stop(service)
        bare.process.kill()
        bare.process.wait()


def product(
    connection: socket.socket, head: bytes, parts: tuple[memoryview, ...], c: memoryview
) -> tuple[float, float]:
    """Milliseconds of one product from its first byte to C's last, and of its kernel, as the service says."""
    began = perf_counter()
    connection.sendall(head)
    for part in parts:
        connection.sendall(part)
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(2**16)
    told, _, rest = found.partition(b"\r\n\r\n")
    if b" 200 " not in told.split(b"\r\n")[0]:
        raise RuntimeError(found.decode(errors="replace"))
    c[: len(rest)] = rest
    at = len(rest)
    while at < len(c) and (count := connection.recv_into(c[at:])):
        at += count
    kernel = KERNEL.search(told.lower())
    if at < len(c) or kernel is None:
        raise RuntimeError("the answer is not whole")
    return 1e3 * (perf_counter() - began), float(kernel[1])


def moved(connection: socket.socket, parts: tuple[memoryview, ...], sink: memoryview) -> float:
    """Milliseconds in which a bare socket takes the operands and gives as much as C is."""
    began = perf_counter()
    for part in parts:
        connection.sendall(b"i")
        connection.sendall(part)
        connection.recv(1)
    connection.sendall(b"o")
    read(connection, len(sink), sink)
    return 1e3 * (perf_counter() - began)


def measured(given: argparse.Namespace) -> Whole:
    """Both sides in turn, after one round that is not counted: it compiles, and memory is there from then on."""
    n, rng = given.size, np.random.default_rng(7)
    dtype = np.dtype(numpy_dtype(given.dtype))
    a, b = (rng.standard_normal((n, n), np.float32).astype(dtype) for _ in range(2))
    c = np.empty((n, n), dtype)
    parts, sink = tuple(each.view(np.uint8).reshape(-1).data for each in (a, b)), c.view(np.uint8).reshape(-1).data
    head = HEAD.format(n=n, dtype=given.dtype, bytes=a.nbytes + b.nbytes).encode()
    with (
        tempfile.TemporaryDirectory() as folder,
        servers(Path(folder), given.devices, a.nbytes) as (service, bare),
        tcp(service.port) as ours,
        tcp(bare.port) as theirs,
    ):
        spare = memoryview(bytearray(a.nbytes))
        turns = range(given.repeats + 1)
        rounds = [(*product(ours, head, parts, sink), moved(theirs, parts, spare)) for _ in turns]
    rows = rng.choice(n, min(n, CHECKED), replace=False)
    exact = a[rows].astype(np.float64) @ b.astype(np.float64)
    error = float(np.linalg.norm(c[rows].astype(np.float64) - exact) / np.linalg.norm(exact))
    ours_ms, kernel_ms, bare_ms = (median(column) for column in zip(*rounds[1:], strict=True))
    allowed = FACTOR * max(kernel_ms, bare_ms) + ALLOWANCE_MS
    return Whole(given.devices, n, given.dtype, ours_ms, kernel_ms, bare_ms, allowed, error, given.repeats)


def main() -> None:
    """Measure, write, and say whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    found = measured(given)
    report = asdict(found) | {"met": found.met}
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    problem = Problem(given.size, given.size, given.size, dtype=given.dtype)
    if not found.met or found.relative_l2 > tolerance(problem).relative_l2:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
