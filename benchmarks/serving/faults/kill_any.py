"""kill -9 of any process of the service at random, again and again, under mixed load; then see what is left.

python -m benchmarks.serving.faults.kill_any [--kills 200] [--seed 20261123]

One in three kills takes the server, which is started again on its data, the others one of its children; each comes
within two seconds after products are served again, and nobody waits for longer than half a minute for that. Clients
ask for products, which are compared with NumPy's, for products as jobs, under a key of idempotency each, and for tunes.
A request that a kill breaks off, or that is refused meanwhile, says nothing. The bars: every job that was acknowledged
is there at the end and has ended, with the right product where it has one; asked for again under its key it is the
same; every trial that was seen is there and unchanged; no product is wrong; no child outlives its server by 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import numpy as np

from benchmarks.harness import Running, start, stop
from benchmarks.serving.faults.kill import Trial, alive, ask, changed, descendants, everything

RESULT: Final = Path("benchmarks/results/serving/kill-any.json")
CLIENTS: Final = 4
_SIDES: Final = (8, 33, 64, 128, 200)
_TUNED: Final = (16, 33, 64)
_RAW: Final = "application/octet-stream"
_SERVED: Final = 2.0  # seconds, at most, in which products are served before the next kill
_PATIENCE: Final = 30.0  # seconds, at most, until they are
_LAST: Final = 300.0  # seconds, at the end, until every job has ended
_OPEN: Final = {"queued", "running"}
_SETTINGS: Final = {"TILEWISE_LOG_LEVEL": "warning", "TILEWISE_RESULT_TTL": "7200", "TILEWISE_RESULT_FILES": "100000"}


@dataclass
class Tally:
    """What was answered and acknowledged; `jobs` are products by id, with their key, operands' seed and side."""

    answers: Counter[str] = field(default_factory=Counter)
    jobs: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    tunes: list[str] = field(default_factory=list)
    trials: dict[int, Trial] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Service:
    """The service, started again on the same data after each kill of its server."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.now = self._started()

    def kill(self, rng: random.Random) -> tuple[str, int]:
        """Kill one process; gives what it was, and how many children a killed server left for 2 s."""
        pid, children = self.now.process.pid, descendants(self.now.process.pid)
        if rng.random() < 1 / 3 or not children:
            self.now.process.kill()
            self.now.process.wait()
            sleep(2)
            outlived = sum(alive(child) for child in children)
            self.now = self._started()
            return "server", outlived
        victim = rng.choice(children)
        what = _role(victim)
        if victim != pid and alive(victim):
            os.kill(victim, signal.SIGKILL)
        return what, 0

    def await_products(self) -> None:
        """Wait until readiness says that products are served, or for a while."""
        until = monotonic() + _PATIENCE
        while monotonic() < until:
            with suppress(OSError, HTTPException):
                if exchange(self.now.port, "GET", "/health/ready")[0] == HTTPStatus.OK:
                    return
            sleep(0.05)

    def _started(self) -> Running:
        command = ["-m", "app.cli", "serve", "--port", "0"]
        return start(command, self._data / "server.log", {"TILEWISE_DATA_DIR": str(self._data), **_SETTINGS})


class Client:
    """One client, which does one thing after another until it is told to end."""

    def __init__(self, service: Service, seed: int, tally: Tally, over: threading.Event) -> None:
        self._service, self._tally, self._over = service, tally, over
        self._seed, self._rng = seed, random.Random(seed)  # noqa: S311 - it chooses requests
        self._count, self._tune = 0, ""

    def run(self) -> None:
        """Send requests; those that a kill breaks off are counted."""
        acts = (self._product, self._product, self._job, self._job, self._tuned, self._looked)
        while not self._over.is_set():
            act = self._rng.choice(acts)
            try:
                act()
            except (OSError, HTTPException, ValueError) as error:
                self._tally.answers[f"broken off: {type(error).__name__}"] += 1
                sleep(0.05)

    def _ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        found = exchange(self._service.now.port, method, path, body, **headers)
        self._tally.answers[f"{method} {found[0]}"] += 1
        return found

    def _product(self) -> None:
        side, seed = self._rng.choice(_SIDES), self._rng.randrange(2**32)
        status, _, c = self._ask("POST", path_of(side), operands(seed, side)[0], Content_Type=_RAW)
        if status == 200 and c != operands(seed, side)[1]:
            self._tally.wrong.append(f"a product of {side}")

    def _job(self) -> None:
        self._count += 1
        side, seed, key = self._rng.choice(_SIDES), self._rng.randrange(2**32), f"{self._seed}-{self._count}"
        headers = {"Content_Type": _RAW, "Prefer": "respond-async", "Idempotency_Key": key}
        status, _, text = self._ask("POST", path_of(side), operands(seed, side)[0], **headers)
        if status == 202:
            self._tally.jobs[str(json.loads(text)["id"])] = key, seed, side

    def _tuned(self) -> None:
        """Tune, unless this client's last tune is waiting."""
        if self._tune and json.loads(self._ask("GET", f"/jobs/{self._tune}")[2])["state"] in _OPEN:
            return
        order = {"shapes": [{name: self._rng.choice(_TUNED) for name in "mnk"}], "budget": {"trials": 3}}
        status, _, text = self._ask("POST", "/tune", json.dumps(order).encode(), Content_Type="application/json")
        if status == 202:
            self._tune = str(json.loads(text)["id"])
            self._tally.tunes.append(self._tune)

    def _looked(self) -> None:
        status, _, text = self._ask("GET", "/trials?limit=50")
        if status == 200:
            for trial in json.loads(text)["trials"]:
                self._tally.trials.setdefault(trial["id"], trial)


def path_of(side: int) -> str:
    """Where square products are asked for."""
    return f"/matmul?m={side}&n={side}&k={side}"


def operands(seed: int, side: int) -> tuple[bytes, bytes]:
    """A and B of small whole numbers, as one body, and their exact product."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, (side, side)).astype(np.float32) for _ in "ab")
    return a.tobytes() + b.tobytes(), (a @ b).tobytes()


def exchange(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": "localhost", **told})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def main() -> None:
    """Load, kill, count, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261123)
    arguments = parser.parse_args()
    rng, tally, over = random.Random(arguments.seed), Tally(), threading.Event()  # noqa: S311 - moments, not secrets
    killed, outlived = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        try:
            clients = [Client(service, arguments.seed + each, tally, over) for each in range(CLIENTS)]
            threads = [threading.Thread(target=client.run) for client in clients]
            for thread in threads:
                thread.start()
            for number in range(arguments.kills):
                service.await_products()
                sleep(rng.uniform(0, _SERVED))
                what, left = service.kill(rng)
                killed[what], outlived = killed[what] + 1, outlived + left
                print(f"kill {number + 1}: {what}; {len(tally.jobs)} jobs, {len(tally.wrong)} wrong", flush=True)
            over.set()
            for thread in threads:
                thread.join()
            report = _left(service.now.port, tally)
        finally:
            over.set()
            stop(service.now)
    report = {
        "kills": arguments.kills,
        "seed": arguments.seed,
        "killed": dict(killed),
        "cores": os.cpu_count(),
    } | report
    report |= {"answers": dict(sorted(tally.answers.items())), "children_that_outlived_by_2_s": outlived}
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if outlived or report["wrong"] or report["lost"]:
        raise SystemExit(1)


def _left(port: int, tally: Tally) -> dict[str, Any]:
    """What of that which was acknowledged is lost, wrong or not ended."""
    until, states = monotonic() + _LAST, dict[str, str]()
    for job in (*tally.jobs, *tally.tunes):
        while (state := _state(port, job)) in _OPEN and monotonic() < until:
            sleep(0.2)
        states[job] = state
    lost = [f"job {job} is {state}" for job, state in states.items() if state in {"missing", *_OPEN}]
    for job, (key, seed, side) in tally.jobs.items():
        lost += _lost_result(port, job, key, seed, side, tally) if states[job] == "succeeded" else []
    stored = {trial["id"]: trial for trial in everything(port)}
    lost += [
        f"trial {number}"
        for number, trial in tally.trials.items()
        if number not in stored or changed(trial, stored[number])
    ]
    return {
        "products_as_jobs": dict(Counter(states[job] for job in tally.jobs)),
        "tunes": dict(Counter(states[job] for job in tally.tunes)),
        "failures": _failures(port, [job for job, state in states.items() if state == "failed"]),
        "trials_seen": len(tally.trials),
        "lost": lost[:20],
        "wrong": tally.wrong[:20],
    }


def _state(port: int, job: str) -> str:
    """A job's state, or that it is missing."""
    status, _, text = exchange(port, "GET", f"/jobs/{job}")
    return str(json.loads(text)["state"]) if status == 200 else "missing"


def _lost_result(port: int, job: str, key: str, seed: int, side: int, tally: Tally) -> list[str]:
    """What is lost of a product's job that has succeeded: its result, or that its key stands for it."""
    body, right = operands(seed, side)
    status, _, c = exchange(port, "GET", f"/jobs/{job}/result", Accept=_RAW)
    if status == 200 and c != right:
        tally.wrong.append(f"the result of job {job}")
    headers = {"Content_Type": _RAW, "Prefer": "respond-async", "Idempotency_Key": key}
    again, _, text = exchange(port, "POST", path_of(side), body, **headers)
    same = again == 202 and json.loads(text)["id"] == job
    return ([] if status == 200 else [f"the result of job {job}: {status}"]) + (
        [] if same else [f"the key of job {job}: {again} {text[:100]!r}"]
    )


def _failures(port: int, jobs: list[str]) -> list[str]:
    """Why jobs have failed, each reason once."""
    return sorted({str(ask(port, "GET", f"/jobs/{job}").get("error"))[:200] for job in jobs})[:20]


def _role(pid: int) -> str:
    """What a child does, by the end of its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return words[-2].decode().rpartition(" ")[2] if len(words) > 1 else "gone"


if __name__ == "__main__":
    main()
