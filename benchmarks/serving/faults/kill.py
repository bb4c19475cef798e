"""kill -9 at random moments, again and again, half of them of the server's process alone; then see what is left.

    python -m benchmarks.serving.faults.kill [--kills 200] [--seed 0]

After every kill: no child outlives its parent by 2 s. At the end: every trial that a client saw is there and
unchanged, no saved (job, problem, kernel, config) was attempted again, and every job finishes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import tempfile
import threading
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from benchmarks.harness import Running, start, stop

RESULT = Path("benchmarks/results/serving/kill.json")
Trial = dict[str, Any]


def serve(data: Path) -> Running:
    """Start the service; unlike the other benchmarks nothing waits until products are served."""
    environment = {"TILEWISE_DATA_DIR": str(data), "TILEWISE_LOG_LEVEL": "info"}
    return start(["-m", "app.cli", "serve", "--port", "0"], data / "server.log", environment)


def ask(port: int, method: str, path: str, body: object = None) -> Any:
    """One JSON request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    connection.close()
    return reply


def watch(port: int, job: str, seen: dict[int, Trial]) -> None:
    """Collect the trials that the job's events show, until the server dies."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", f"/jobs/{job}/events")
        event = ""
        for line in connection.getresponse():
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: ") and event == "trial":
                trial = json.loads(line[6:])
                seen[trial["id"]] = trial
    except (OSError, HTTPException, ValueError):
        return
    finally:
        connection.close()


def descendants(pid: int) -> list[int]:
    """Every process under one, by /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
    found, frontier = list[int](), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found += frontier
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def kill(server: Running, *, alone: bool) -> int:
    """Kill the server, with its children or without; gives how many children were alive 2 s later."""
    children = descendants(server.process.pid)
    server.process.kill()
    for child in () if alone else children:
        if alive(child):
            os.kill(child, signal.SIGKILL)
    server.process.wait()
    sleep(2)
    return sum(alive(child) for child in children)


def one_round(data: Path, chance: random.Random, seen: dict[int, Trial], *, alone: bool) -> int:
    """Start, have a job to do, watch it, and kill at a random moment."""
    server = serve(data)
    if not any(job["state"] in {"queued", "running"} for job in ask(server.port, "GET", "/jobs")["jobs"]):
        size = chance.randint(16, 200)
        order = {"shapes": [{"m": size, "n": size, "k": 32}, {"m": 64, "n": size, "k": size}], "budget": {"trials": 40}}
        ask(server.port, "POST", "/tune", order)
    jobs = [job["id"] for job in ask(server.port, "GET", "/jobs")["jobs"] if job["state"] in {"queued", "running"}]
    threads = [threading.Thread(target=watch, args=(server.port, job, seen)) for job in jobs]
    for thread in threads:
        thread.start()
    sleep(chance.uniform(0, 3))
    for trial in ask(server.port, "GET", "/trials?limit=50")["trials"]:
        seen.setdefault(trial["id"], trial)
    outlived = kill(server, alone=alone)
    for thread in threads:
        thread.join()
    return outlived


def attempted_twice(log: str) -> int:
    """How many trials the service's log shows attempted after it had logged them as saved.

    One saved in the instant between the commit and its log line is not in here: attempting that again would break
    the table's unique constraint and fail its job, which is counted.
    """
    saved: set[str] = set()
    twice = 0
    for verb, trial in re.findall(r"(attempt|saved) (\S+ \S+ \S+ \S*)", log):
        twice += verb == "attempt" and trial in saved
        if verb == "saved":
            saved.add(trial)
    return twice


def everything(port: int) -> list[Trial]:
    """All stored trials, page by page."""
    found: list[Trial] = []
    cursor: str | None = ""
    while cursor is not None:
        page = ask(port, "GET", "/trials?limit=500" + (f"&cursor={cursor}" if cursor else ""))
        found += page["trials"]
        cursor = page["next"]
    return found


def main() -> None:
    """Kill, kill again, then count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance, seen = random.Random(arguments.seed), dict[int, Trial]()  # noqa: S311 - moments, not secrets
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        outlived = 0
        for number in range(arguments.kills):
            outlived += one_round(data, chance, seen, alone=number % 2 == 0)
            print(f"kill {number + 1}: {len(seen)} trials seen, {outlived} children outlived", flush=True)
        server = serve(data)
        until = perf_counter() + 300
        while any(job["state"] in {"queued", "running"} for job in ask(server.port, "GET", "/jobs")["jobs"]):
            if perf_counter() > until:
                break
            sleep(0.5)
        jobs, trials = ask(server.port, "GET", "/jobs?limit=200")["jobs"], everything(server.port)
        stop(server)
        stored = {trial["id"]: trial for trial in trials}
        lost = sum(number not in stored or changed(trial, stored[number]) for number, trial in seen.items())
        twice = attempted_twice((data / "server.log").read_text())
    report = {
        "kills": arguments.kills,
        "seed": arguments.seed,
        "trials_seen": len(seen),
        "trials_lost_or_changed": lost,
        "attempted_again_after_saved": twice,
        "jobs": len(jobs),
        "jobs_not_succeeded": sum(job["state"] != "succeeded" for job in jobs),
        "children_that_outlived_by_2_s": outlived,
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if lost or twice or outlived or report["jobs_not_succeeded"]:
        raise SystemExit(1)


def changed(seen: Trial, stored: Trial) -> bool:
    """Whether a stored trial differs from what a client saw of it."""
    return any(seen[name] != stored[name] for name in ("kernel", "config", "state", "reason"))


if __name__ == "__main__":
    main()
