"""SIGSTOP of the process that makes products, again and again: how soon a product is made again.

python -m benchmarks.serving.faults.stops [--stops 50]

A driver that hangs looks like it. Each product is asked for right after the stop, and waits; readiness is asked
meanwhile. The bar: every one within 5 s, right, and readiness says it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np

from benchmarks.harness import Running, service
from benchmarks.serving.faults.kill import descendants

RESULT = Path("benchmarks/results/serving/stops.json")
BAR = 5.0  # seconds
SIDE = 48
PATH = f"/matmul?m={SIDE}&n={SIDE}&k={SIDE}"
OPERANDS = np.arange(2 * SIDE * SIDE, dtype=np.float32) % 7
PRODUCT = OPERANDS[: SIDE * SIDE].reshape(SIDE, SIDE) @ OPERANDS[SIDE * SIDE :].reshape(SIDE, SIDE)


def main() -> None:
    """Stop, time, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=50)
    count = parser.parse_args().stops
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        times, told = zip(*(_stopped(server) for _ in range(count)), strict=True)
    report = {
        "stops": count,
        "median_s": median(times),
        "worst_s": max(times),
        "over_5_s": sum(took > BAR for took in times),
        "readiness_said_503": sum(503 in answers for answers in told),
        "cores": os.cpu_count(),
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _stopped(server: Running) -> tuple[float, Counter[int]]:
    """Stop the child: the seconds until a product is made again, and what readiness answered meanwhile."""
    answers, made = Counter[int](), threading.Event()

    def ask() -> None:
        while not made.wait(0.05):
            answers[_answer(server, "GET", "/health/ready")[0]] += 1

    asking = threading.Thread(target=ask)
    _product(server)
    os.kill(_serving_child(server), signal.SIGSTOP)
    began = perf_counter()
    asking.start()
    _product(server)
    took = perf_counter() - began
    made.set()
    asking.join()
    while _answer(server, "GET", "/health/ready")[0] != 200:
        sleep(0.05)
    return took, answers


def _product(server: Running) -> None:
    status, body = _answer(server, "POST", PATH, OPERANDS.tobytes())
    if status != 200 or not np.array_equal(np.frombuffer(body, np.float32).reshape(SIDE, SIDE), PRODUCT):
        raise RuntimeError(f"a product was answered {status}: {body[:200]!r}")


def _answer(server: Running, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=150)
    connection.request(method, path, body, {"Content-Type": "application/octet-stream", "Host": "localhost"})
    answer = connection.getresponse()
    told = answer.status, answer.read()
    connection.close()
    return told


def _serving_child(server: Running) -> int:
    """The process that makes products, by its command line."""
    for pid in descendants(server.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"products" in b" ".join(words).split():
            return pid
    raise RuntimeError("there is no process that makes products")


if __name__ == "__main__":
    main()
