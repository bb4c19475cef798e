"""Uploads that their clients break off at a random byte: what is left of them, and whether a product is right after."""

from __future__ import annotations

import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.harness import Running
from benchmarks.serving.wire.process import anonymous

CLIENTS = 8
N = 512  # operands of a mebibyte
LEFT_BYTES = 2**23  # growth that an allocator's habits may explain, of a process that holds no body
RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER for no time: the system tells the server of a reset, not of an end


def aborts(service: Running, count: int) -> dict[str, Any]:
    """Break off so many uploads; `left` names what there is more of than before, `right` is of a product after them."""
    seed = int.from_bytes(os.urandom(4))
    _storm(service.port, seed, count)  # as many as are counted: from then on nothing may grow
    before = _counts(service)
    began = perf_counter()
    _storm(service.port, seed + 1, count)
    took = perf_counter() - began
    after = _counts(service)
    grown = {name: after[name] - before[name] for name in before}
    allowed = {"anonymous_bytes": LEFT_BYTES, "descriptors": 0, "threads": 4, "lent_bytes": 0}
    left = [name for name, more in grown.items() if more > allowed[name]]
    told = {"seed": seed, "count": count, "seconds": took, "before": before, "after": after}
    return told | {"left": left, "right": _right(service.port, seed)}


def _storm(port: int, seed: int, count: int) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda client: _abort(port, seed + client, count // CLIENTS), range(CLIENTS)))


def _abort(port: int, seed: int, count: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    head = f"POST /matmul?m={N}&n={N}&k={N} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    sent = (head + f"Content-Length: {8 * N * N}\r\n\r\n").encode() + bytes(8 * N * N)
    for _ in range(count):
        cut = chance.choice((chance.randrange(len(sent)), chance.randrange(300), chance.randrange(2**17)))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(sent[:cut])
            if chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def _right(port: int, seed: int) -> bool:
    """Whether a product of whole numbers, large enough to pass through the slab, is what it must be."""
    chance = np.random.default_rng(seed)
    a, b = (chance.integers(-8, 9, (N, N)).astype(np.float32) for _ in range(2))
    head = {"Content-Type": "application/octet-stream"}
    url = f"http://127.0.0.1:{port}/matmul?m={N}&n={N}&k={N}"
    with urlopen(Request(url, a.tobytes() + b.tobytes(), head), timeout=60) as answer:
        return bool(np.array_equal(np.frombuffer(answer.read(), np.float32).reshape(N, N), a @ b))


def _counts(service: Running) -> dict[str, int]:
    """What a leak would show in, once all is quiet."""
    until, lent = perf_counter() + 20, 1
    while lent and perf_counter() < until:
        sleep(0.5)
        with urlopen(f"{service.url}/metrics", timeout=20) as answer:  # noqa: S310 - our own address
            lines = answer.read().decode().splitlines()
        lent = next(int(float(line.split()[1])) for line in lines if line.startswith("tilewise_slab_lent_bytes "))
    process = Path(f"/proc/{service.process.pid}")
    return {
        "lent_bytes": lent,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
        "anonymous_bytes": anonymous(service.process.pid),
    }
