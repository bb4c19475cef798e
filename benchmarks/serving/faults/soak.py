"""Hours of mixed load: whether the service's memory, descriptors and threads stay as they are.

python -m benchmarks.serving.faults.soak [--minutes 120] [--clients 6] [--rate 50] [--output FILE]

Products in every form, some as jobs whose results are fetched, resident matrices, small tunes of as many shapes as are
tuned in the warm-up (what is stored of each is kept for ever), questions, bodies that are refused or broken off; so
many things a second at most in all, as fast as they are done where no rate is given. Every ten seconds the memory of
the service and of its children is read from /proc, in the parts that a process has alone, with its descriptors and
threads. Towards the end of the warm-up, a quarter of the time, more shapes are asked for than answers are kept of:
questions at random would fill that cache in hours. The slope of memory is that of the medians of minutes after it, by
Theil and Sen, with its 95 % interval. The bar: the interval reaches 1 MB an hour or less, descriptors and threads are
flat, no error. What was found so far is written every few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import combinations
from math import inf, sqrt
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any, Final

import numpy as np

from benchmarks.harness import Running, service
from benchmarks.serving.faults.kill import descendants

RESULT: Final = Path("benchmarks/results/serving/soak.json")
BAR: Final = 1e6  # bytes an hour
_EVERY: Final = 10.0  # seconds between two looks
_WARM: Final = 0.25  # of the time
_SIDES: Final = (8, 33, 64, 128, 300)
_TUNED: Final = (16, 33, 64)  # each of m, n and k
_ASKED: Final = 5000  # shapes in the warm-up: the service keeps 4096 answers
_FILLED: Final = 0.2  # of the time, when they are
_WRITTEN: Final = 300.0  # seconds between two reports
_RAW: Final = "application/octet-stream"
_JSON: Final = "application/json"
_REFUSED: Final = {"429", "503"}
_Z: Final = 1.96


@dataclass
class Tally:
    """What was answered, and what was wrong."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Client:
    """One client, which does one thing after another until `until`."""

    def __init__(self, port: int, seed: int, tally: Tally, pause: float = 0.0) -> None:
        self._port, self._rng, self._tally = port, random.Random(seed), tally  # noqa: S311 - it chooses requests
        self._pause = pause  # seconds from one thing's start to the next one's, at least
        self._name, self._tuned = f"soak{seed}", ""

    def run(self, until: float) -> None:
        """Send requests; what is no answer is noted as wrong."""
        acts = (self._product, self._product, self._text, self._job, self._matrix, self._tune, self._question)
        while monotonic() < until:
            act, began = self._rng.choice((*acts, self._refused, self._broken_off)), monotonic()
            try:
                act()
            except (OSError, HTTPException) as error:
                self._tally.wrong.append(f"{act.__name__}: {error!r}")
            sleep(max(0.0, min(began + self._pause, until) - monotonic()))

    def fill(self, count: int) -> None:
        """Ask for the best configs of as many shapes."""
        for size in range(1, count + 1):
            self._ask("GET", f"/best-config?m={size}&n=500&k=500")

    def _ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {"Host": "localhost", **told})
            answer = connection.getresponse()
            found = answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()
        self._tally.answers[f"{method} {found[0]}"] += 1
        if found[0] >= 500 and str(found[0]) not in _REFUSED:
            self._tally.wrong.append(f"{method} {path}: {found[0]} {found[2][:200]!r}")
        return found

    def _operands(self) -> tuple[int, bytes, bytes]:
        side, rng = self._rng.choice(_SIDES), np.random.default_rng(self._rng.randrange(2**32))
        a, b = (rng.integers(-4, 5, (side, side)).astype(np.float32) for _ in "ab")
        return side, a.tobytes() + b.tobytes(), (a @ b).tobytes()

    def _expect(self, what: str, found: bytes, right: bytes) -> None:
        if found != right:
            self._tally.wrong.append(f"{what} is wrong")

    def _product(self) -> None:
        side, body, right = self._operands()
        status, _, c = self._ask("POST", f"/matmul?m={side}&n={side}&k={side}", body, Content_Type=_RAW)
        if status == 200:
            self._expect("a product", c, right)

    def _text(self) -> None:
        side = self._rng.choice((4, 64, 200))
        one = [[1] * side for _ in range(side)]
        text = json.dumps({"a": one, "b": one}).encode()
        status, _, c = self._ask("POST", "/matmul", text, Content_Type=_JSON)
        if status == 200:
            self._expect(
                "a product in JSON",
                np.array(json.loads(c)["c"], np.float32).tobytes(),
                np.full((side, side), side, np.float32).tobytes(),
            )

    def _job(self) -> None:
        side, body, right = self._operands()
        path = f"/matmul?m={side}&n={side}&k={side}"
        status, headers, _ = self._ask("POST", path, body, Content_Type=_RAW, Prefer="respond-async")
        if status != 202:
            return
        place = {name.lower(): value for name, value in headers.items()}["location"]
        self._ask("GET", place, Prefer="wait=20")
        status, _, c = self._ask("GET", f"{place}/result", Accept=_RAW)
        if status == 200:
            self._expect("a result", c, right)

    def _matrix(self) -> None:
        side, body, right = self._operands()
        half = len(body) // 2
        self._ask("PUT", f"/matrices/{self._name}?shape={side}x{side}", body[:half], Content_Type=_RAW)
        status, _, c = self._ask("POST", f"/matmul?a={self._name}&n={side}", body[half:], Content_Type=_RAW)
        if status == 200:
            self._expect("a product of a resident matrix", c, right)
        self._ask("DELETE", f"/matrices/{self._name}")

    def _tune(self) -> None:
        """Tune unless this client's last job is waiting: products go first, and a queue that grows is no leak."""
        if self._rng.random() < 0.1 and not (self._tuned and self._is_open(self._tuned)):
            shape = {name: self._rng.choice(_TUNED) for name in "mnk"}
            order = json.dumps({"shapes": [shape], "budget": {"trials": 2}}).encode()
            status, headers, _ = self._ask("POST", "/tune", order, Content_Type=_JSON)
            found = {name.lower(): value for name, value in headers.items()}
            self._tuned = found["location"] if status == 202 else ""

    def _is_open(self, job: str) -> bool:
        status, _, text = self._ask("GET", job)
        return status == 200 and json.loads(text)["state"] in {"queued", "running"}

    def _question(self) -> None:
        m, n, k = (self._rng.randint(1, 500) for _ in "mnk")
        self._ask(
            "GET",
            self._rng.choice((f"/best-config?m={m}&n={n}&k={k}", "/jobs", "/metrics", "/devices", "/health/ready")),
        )

    def _refused(self) -> None:
        body = self._rng.choice((b"[" * 5000, b'{"a":[[],[]]}', b"x" * 70_000, b'{"a":1,"b":2,"c":3}'))
        self._ask("POST", self._rng.choice(("/matmul", "/tune", "/v2/models/matmul/infer")), body, Content_Type=_JSON)

    def _broken_off(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as connection, suppress(OSError):
            lines = ("POST /matmul?m=300&n=300&k=300 HTTP/1.1", "Host: localhost", f"Content-Type: {_RAW}")
            head = "\r\n".join((*lines, "Content-Length: 720000", "", ""))
            connection.sendall(head.encode() + bytes(self._rng.randrange(700_000)))
        self._tally.answers["broken off"] += 1


def look(server: Running) -> dict[str, float]:
    """Bytes of the service and its children, each page in its part, without shared memory; descriptors, threads."""
    found = {"service": 0.0, "children": 0.0, "descriptors": 0.0, "threads": 0.0}
    for pid in (server.process.pid, *descendants(server.process.pid)):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            nbytes = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
            own = pid == server.process.pid
            found["service" if own else "children"] += nbytes
            if own:
                found["descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names alone
                found["threads"] = len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    return found


def slope(times: list[float], values: list[float]) -> dict[str, float]:
    """The median slope of all pairs, and its 95 % interval by Kendall's statistic (Sen, 1968); in an hour."""
    slopes = sorted(
        3600 * (values[j] - values[i]) / (times[j] - times[i]) for i, j in combinations(range(len(times)), 2)
    )
    n = len(times)
    half = _Z * sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = int((len(slopes) - half) / 2), int((len(slopes) + half) / 2) + 1
    return {"slope": median(slopes), "low": slopes[max(0, low)], "high": slopes[min(len(slopes) - 1, high)]}


def _minutes(rows: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Medians of each minute."""
    groups: dict[int, list[dict[str, float]]] = {}
    for row in rows:
        groups.setdefault(int(row["at"] // 60), []).append(row)
    return [60.0 * minute for minute in groups], [median(row[name] for row in group) for group in groups.values()]


def main() -> None:
    """Load, look, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--rate", type=float, default=inf)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWISE_RESULT_TTL", "30")
    os.environ.setdefault("TILEWISE_JOBS_KEPT", "200")
    os.environ.setdefault("TILEWISE_TRIALS_KEPT", "500")
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        report = _soaked(server, Path(folder) / "server.log", arguments)
    print(json.dumps(report, indent=1))


def _soaked(server: Running, log: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Load for so many minutes; gives the report, which is written now and then."""
    tally, rows, began = Tally(), list[dict[str, float]](), monotonic()
    until, reported = began + 60 * arguments.minutes, began
    clients = [
        Client(server.port, arguments.seed + each, tally, arguments.clients / arguments.rate)
        for each in range(arguments.clients)
    ]
    threads = [threading.Thread(target=client.run, args=(until,)) for client in clients]
    for thread in threads:
        thread.start()
    filling = threading.Timer(_FILLED * 60 * arguments.minutes, clients[0].fill, [_ASKED])
    filling.start()
    while monotonic() < until:
        sleep(min(_EVERY, max(0.0, until - monotonic())))
        rows.append({"at": monotonic() - began, **look(server)})
        if monotonic() > reported + _WRITTEN:
            reported = monotonic()
            _report(rows, tally, log, arguments)
    for thread in (*threads, filling):
        thread.join()
    return _report(rows, tally, log, arguments)


def _report(rows: list[dict[str, float]], tally: Tally, log: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write what was found until now."""
    minutes = rows[-1]["at"] / 60
    errors = [line for line in log.read_text().splitlines() if " ERROR " in line]
    report = summary(rows, rows[-1]["at"]) | {"answers": dict(tally.answers)}
    report |= {"wrong": tally.wrong[:50], "errors": errors[:50], "minutes": round(minutes, 2)}
    report |= {"clients": arguments.clients, "cores": os.cpu_count()}
    report |= {} if arguments.rate == inf else {"things_a_second": arguments.rate}
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    return report


def summary(rows: list[dict[str, float]], seconds: float) -> dict[str, Any]:
    """The slopes after the warm-up, and the figures of its end and of the run's."""
    warm = [row for row in rows if row["at"] > _WARM * seconds]
    names = ("service", "children", "descriptors", "threads")
    return {
        "an_hour": {name: slope(*_minutes(warm, name)) for name in names},
        "warm": {name: warm[0][name] for name in names},
        "end": {name: warm[-1][name] for name in names},
        "each_ten_minutes": {name: _course(rows, name) for name in names},
        "bar_bytes_an_hour": BAR,
    }


def _course(rows: list[dict[str, float]], name: str) -> list[float]:
    """Medians of each ten minutes."""
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(int(row["at"] // 600), []).append(row[name])
    return [median(group) for group in groups.values()]


if __name__ == "__main__":
    main()
