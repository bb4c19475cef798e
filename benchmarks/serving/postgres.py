"""Services that share a PostgreSQL while they are killed and frozen: each job done once, answers true on all in time.

    python -m benchmarks.serving.postgres [--services 4] [--jobs 1000] [--every 5] [--longest 900] [--note TEXT]

Every service is a process of its own on a device that takes no time; the jobs are tunes of different small shapes. Each
`every` seconds one is killed outright and started anew, or frozen for longer than its lease and thawed, in turn. A
service is asked of each new best until it answers it: the delay counts from the promotion's commit, or from its thaw or
start if that was later.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import psycopg

from tests.support.services.null_services import NullService, null_service
from tests.support.store.databases import empty_database, running

RESULT: Final = Path("benchmarks/results/serving/postgres.json")
_LEASE: Final = 2.0  # seconds
_FROZEN: Final = 4.0
_LOOK: Final = 0.05
_SEED: Final = 7


@dataclass
class Member:
    """One of the services; `since` is when it last began to answer, None while it is down or frozen."""

    folder: Path
    database: str
    stack: ExitStack = field(default_factory=ExitStack)
    service: NullService | None = None
    since: float | None = None

    def start(self) -> None:
        """Start it, anew if need be."""
        self.stack.close()
        self.service = self.stack.enter_context(null_service(self.folder, self.database, lease=str(_LEASE)))
        self.since = time.time()

    def kill(self) -> None:
        """Kill it, and start it again."""
        self.since = None
        if self.service is not None:
            self.service.kill()
        self.start()

    def freeze(self) -> None:
        """Freeze it for longer than its lease."""
        self.since = None
        if self.service is not None:
            self.service.freeze()
            time.sleep(_FROZEN)
            self.service.thaw()
        self.since = time.time()


def main() -> None:
    """Run, and write what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--longest", type=float, default=900.0)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    given = parser.parse_args()
    with database() as url, members(url, given.services) as services:
        started = time.monotonic()
        with asked(url, services) as delays:
            submitted(services[0], given.jobs)
            faults = disturbed(url, services, given)
        found = outcome(url, given.jobs) | {"faults": faults, "answers": answered(delays)}
        found["seconds"] = round(time.monotonic() - started, 1)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    RESULT.write_text(json.dumps({"machine": machine, **vars(given), "lease": _LEASE, **found}, indent=1) + "\n")


@contextmanager
def database() -> Iterator[str]:
    """An empty database of a server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="tilewise-postgres-") as folder,
        running(Path(folder)) as server,
        empty_database(server) as url,
    ):
        yield url


@contextmanager
def members(url: str, count: int) -> Iterator[Sequence[Member]]:
    """Services that run."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = [Member(Path(folder) / str(number), url) for number in range(count)]
        for member in found:
            stack.callback(member.stack.close)
            member.start()
        yield found


@contextmanager
def asked(url: str, services: Sequence[Member]) -> Iterator[list[float]]:
    """Ask each service of every new best until the block ends; gives how late the answers are.

    It begins before the first job: of bests that were there before, the asking itself would be what is late.
    """
    ending, delays = threading.Event(), list[float]()
    asking = [threading.Thread(target=ask, args=(url, member, ending, delays)) for member in services]
    for thread in asking:
        thread.start()
    try:
        yield delays
    finally:
        ending.set()
        for thread in asking:
            thread.join()


def submitted(member: Member, jobs: int) -> None:
    """Order as many tunes, each of another size."""
    with httpx.Client(timeout=60) as client:
        for number in range(1, jobs + 1):
            shape = {"m": 16, "n": 16, "k": 8 * number}
            body = {"shapes": [shape], "kernels": ["tiled"], "budget": {"trials": 1}, "strategy": "random"}
            if member.service is not None:
                client.post(f"{member.service.url}/tune", json=body).raise_for_status()


def disturbed(url: str, services: Sequence[Member], given: argparse.Namespace) -> dict[str, int]:
    """Kill and freeze until every job has ended; gives how often."""
    faults = Counter[str]()
    rng = random.Random(_SEED)  # noqa: S311 - no secret
    until, longest = time.monotonic() + given.every, time.monotonic() + given.longest
    while left(url) and time.monotonic() < longest:
        if time.monotonic() >= until:
            fault = ("kill", "freeze")[faults.total() % 2]
            getattr(rng.choice(services), fault)()
            faults[fault] += 1
            until = time.monotonic() + given.every
        time.sleep(_LOOK)
    time.sleep(1.5)
    return dict(faults)


def left(url: str) -> int:
    """Jobs that have not ended."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')").fetchone()
    return 0 if row is None else int(row[0])


def outcome(url: str, jobs: int) -> dict[str, Any]:
    """States of the jobs, promotions of each, and how often they were claimed."""
    with psycopg.connect(url) as connection:
        states: dict[str, int] = dict(connection.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        promoted = connection.execute(
            "SELECT count(*), count(DISTINCT job_id) FROM best_history WHERE event = 'promoted'"
        ).fetchone()
        again = connection.execute("SELECT count(*) FROM jobs WHERE fence > 1").fetchone()
    promotions, promoted_jobs = promoted or (0, 0)
    every = {"ordered": jobs, "states": states, "promotions": promotions, "promoted_jobs": promoted_jobs}
    return every | {"claimed_again": again and again[0]}


def ask(url: str, member: Member, ending: threading.Event, delays: list[float]) -> None:
    """Ask a service of each new best until it answers it exactly."""
    waiting: dict[int, float] = {}
    seen = 0
    with psycopg.connect(url, autocommit=True) as connection, httpx.Client(timeout=2) as client:
        while not ending.is_set():
            fresh = connection.execute(
                "SELECT number, k FROM best_history WHERE number > %s AND event = 'promoted' ORDER BY number", (seen,)
            ).fetchall()
            for number, k in fresh:
                seen = number
                waiting[k] = time.time()
            for k, since in list(waiting.items()):
                if (late := delay(client, member, k, since)) is not None:
                    delays.append(late)
                    del waiting[k]
            ending.wait(_LOOK)
    delays += [float("inf")] * len(waiting)


def delay(client: httpx.Client, member: Member, k: int, since: float) -> float | None:
    """Seconds until a service answered a best; None if it does not yet, or is away."""
    began = member.since
    if began is None or member.service is None:
        return None
    try:
        answer = client.get(f"{member.service.url}/best-config", params={"m": 16, "n": 16, "k": k})
    except httpx.TransportError:
        return None
    is_exact = answer.is_success and answer.json()["match"] == "exact" and not answer.json()["provisional"]
    return max(0.0, time.time() - max(since, began)) if is_exact and member.since == began else None


def answered(delays: Sequence[float]) -> dict[str, Any]:
    """How late the answers were, in seconds."""
    known = sorted(one for one in delays if one != float("inf"))
    never = len(delays) - len(known)
    if not known:
        return {"asked": len(delays), "never": never}
    figures = {"median_s": median(known), "p99_s": known[int(0.99 * (len(known) - 1))], "most_s": known[-1]}
    late = sum(one > 1.0 for one in known)
    return {"asked": len(delays), "never": never, "over_1_s": late} | {k: round(v, 3) for k, v in figures.items()}


if __name__ == "__main__":
    main()
