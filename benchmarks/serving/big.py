"""Products of 3 GiB and 2 x 4 GiB of operands, computed on this machine's processor, every element compared.

    python -m benchmarks.serving.big [--out benchmarks/results/serving/big.json]

Operands of zeros and ones that repeat along k: the client needs no such memory, and sums of up to 2^24 are exact in
float32. Slab and device take some 17 GiB. What is past the device's allocation limit has to be a 422 that says by how
much, before a byte of it is sent.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from app.dtypes import Array
from benchmarks.harness import Running, start, stop, wait_ready

RESULT = Path("benchmarks/results/serving/big.json")
GIB = 2**30
SLAB = 9 * GIB
HEAD = "POST /matmul?m={m}&n={n}&k={k} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"


@dataclass(frozen=True)
class Shape:
    """A product; op(A) and B repeat every `period` along k."""

    name: str
    m: int
    n: int
    k: int
    period: int

    @property
    def nbytes(self) -> int:
        """Bytes of both operands."""
        return 4 * self.k * (self.m + self.n)


SHAPES = (
    Shape("3 GiB", 2**14, 2, 3 * 2**14, 2**14),
    Shape("2 x 4 GiB", 64, 64, 2**24, 2**16),
    Shape("2 x 8 GiB", 64, 64, 2**25, 2**16),
)


@dataclass(frozen=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


def operands(shape: Shape) -> tuple[Iterator[memoryview], Array]:
    """The body in pieces, and C: `k / period` times the product of one period, whole numbers of at most 2^24."""
    rng, turns = np.random.default_rng(1), shape.k // shape.period
    a = rng.integers(0, 2, (shape.m, shape.period)).astype(np.float32)
    b = rng.integers(0, 2, (shape.period, shape.n)).astype(np.float32)

    def pieces() -> Iterator[memoryview]:
        for row in a:
            yield np.tile(row, turns).data.cast("B")
        for _ in range(turns):
            yield b.data.cast("B")

    return pieces(), turns * (a @ b)


def asked(port: int, shape: Shape, body: Iterator[memoryview]) -> Answer:
    """Send the head, the body if that is asked for, and read the answer."""
    head = HEAD.format(m=shape.m, n=shape.n, k=shape.k)
    head += f"Content-Length: {shape.nbytes}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(head.encode())
        answer = _head(connection)
        if answer.startswith(b"HTTP/1.1 100"):
            for piece in body:
                connection.sendall(piece)
            answer = _head(connection)
        status, _, rest = answer.partition(b"\r\n\r\n")
        while more := connection.recv(2**20):
            rest += more
        return Answer(int(status.split()[1]), rest)


def _head(connection: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(2**16)
    return found


def told(server: Running, shape: Shape) -> dict[str, Any]:
    """What came of one product."""
    body, c = operands(shape)
    began = perf_counter()
    answer = asked(server.port, shape, body)
    found: dict[str, Any] = {"name": shape.name, "status": answer.status, "seconds": perf_counter() - began}
    if answer.status == 200:
        made = np.frombuffer(answer.body, np.float32).reshape(c.shape)
        return found | {"wrong": int((made != c).sum()), "elements": c.size}
    return found | {"error": json.loads(answer.body)}


def main() -> None:
    """Ask for each, write what came, and end with 1 where an element is wrong or a refusal says no figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TILEWISE_DATA_DIR": folder, "TILEWISE_LOG_LEVEL": "warning", "TILEWISE_DEVICES": "opencl"}
        environment |= {"TILEWISE_SLAB_BYTES": str(SLAB), "TILEWISE_MAX_BODY_BYTES": str(2**36)}
        server = start(["-m", "app.cli", "serve", "--port", "0"], Path(folder) / "server.log", environment)
        try:
            wait_ready(server)
            products = [told(server, shape) for shape in SHAPES]
        finally:
            stop(server)
    given.out.write_text(json.dumps({"products": products}, indent=1) + "\n")
    print(json.dumps(products, indent=1))
    if any(each.get("wrong") or not each.get("error", {"limit": 1}).get("limit") for each in products):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
