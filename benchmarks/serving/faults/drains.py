"""SIGTERM under load, again and again: nothing that was accepted is dropped.

python -m benchmarks.serving.faults.drains [--drains 100]

Clients ask for products as fast as they are made, each on a connection of its own, one in four as a job. An answer is
the right product, a job, or 503 `closing`; a connection that was accepted gets one. After the drain every job that was
accepted has succeeded, and its result is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np

from benchmarks.harness import Running, start, stop, wait_ready

RESULT = Path("benchmarks/results/serving/drains.json")
CLIENTS, SIDES = 8, (16, 64, 300)
RAW = {"Content-Type": "application/octet-stream", "Host": "localhost", "Connection": "close"}


@dataclass
class Tally:
    """What became of requests: `dropped` were accepted and got no answer."""

    answers: Counter[str] = field(default_factory=Counter)
    jobs: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, job: str | None = None) -> None:
        """Count an answer."""
        with self.lock:
            self.answers[what] += 1
            if job:
                self.jobs.append(job)
            if what.startswith(("dropped", "wrong")):
                self.dropped.append(what)


def main() -> None:
    """Drain, count, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drains", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261123)
    arguments = parser.parse_args()
    rng, tally, times = random.Random(arguments.seed), Tally(), list[float]()  # noqa: S311 - it chooses moments
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.drains):
            times.append(_drained(Path(folder), rng.uniform(0.05, 0.6), tally))
            print(f"drain {number + 1}: {times[-1]:.1f} s, {len(tally.jobs)} jobs, {tally.dropped}", flush=True)
        unfinished = _unfinished(Path(folder), tally.jobs)
    report = {
        "drains": arguments.drains,
        "answers": dict(sorted(tally.answers.items())),
        "jobs_accepted": len(tally.jobs),
        "jobs_not_succeeded": unfinished,
        "dropped": tally.dropped[:20],
        "median_s": median(times),
        "worst_s": max(times),
        "cores": os.cpu_count(),
        "seed": arguments.seed,
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _drained(data: Path, after: float, tally: Tally) -> float:
    """Start, have clients ask, end it so many seconds later; gives the seconds that its end took."""
    environment = {"TILEWISE_DATA_DIR": str(data), "TILEWISE_DRAIN_SECONDS": "60"}
    server, over = start(["-m", "app.cli", "serve", "--port", "0"], data / "server.log", environment), threading.Event()
    try:
        wait_ready(server)
        seeds = random.SystemRandom()
        clients = [threading.Thread(target=_ask, args=(server, seeds.random(), over, tally)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        sleep(after)
        began = perf_counter()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        took = perf_counter() - began
        over.set()
        for client in clients:
            client.join()
    finally:
        stop(server)
    return took


def _ask(server: Running, seed: float, over: threading.Event, tally: Tally) -> None:
    """Ask for products until the service is gone."""
    rng = random.Random(seed)  # noqa: S311 - it chooses sizes
    while not over.is_set():
        side, as_job = rng.choice(SIDES), rng.random() < 0.25
        connection = HTTPConnection("127.0.0.1", server.port, timeout=90)
        try:
            connection.connect()
        except OSError:
            tally.note("not accepted")
            sleep(0.01)
            continue
        try:
            tally.note(*_answer(connection, side, as_job=as_job))
        except (OSError, HTTPException) as error:
            tally.note(f"dropped: {type(error).__name__}: {error}")
        finally:
            connection.close()


def _answer(connection: HTTPConnection, side: int, *, as_job: bool) -> tuple[str, str | None]:
    """One product: what its answer is, and its job."""
    headers = RAW | ({"Prefer": "respond-async"} if as_job else {})
    body = np.ones(2 * side * side, np.float32).tobytes()
    connection.request("POST", f"/matmul?m={side}&n={side}&k={side}", body, headers)
    answer = connection.getresponse()
    content = answer.read()
    match answer.status:
        case 200:
            right = set(np.frombuffer(content, np.float32).tolist()) == {float(side)}
            return ("product" if right else "wrong product"), None
        case 202:
            return "job", str(json.loads(content)["id"])
        case 503:
            return f"503 {json.loads(content)['code']}", None
    return f"wrong: {answer.status} {content[:100]!r}", None


def _unfinished(data: Path, jobs: list[str]) -> list[str]:
    """Accepted jobs that did not succeed, or whose result is not there."""
    with sqlite3.connect(data / "tilewise.db") as database:
        states = dict(database.execute("SELECT id, state FROM jobs").fetchall())
    kept = {path.name.partition(".")[0] for path in (data / "results").iterdir()}
    lost = [job for job in jobs if states.get(job) != "succeeded" or not any(name.startswith(job) for name in kept)]
    return [f"{job}: {states.get(job)}" for job in lost[:20]]


if __name__ == "__main__":
    main()
