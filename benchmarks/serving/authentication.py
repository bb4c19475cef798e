"""What authentication costs GET /best-config, and what a refusal costs: a service with keys beside one without.

python -m benchmarks.serving.authentication [--seconds 2] [--rounds 10]

Both serve, and are asked in turn, in random order. Rates are of 64 connections; processor time is the service's own, by
request. The tenth part of the rounds with the least processor a request is told apart: they were disturbed least, which
is what can be compared where others use the machine. The bars: at most 3 % of the rate, and 0.3 ms of processor for a
refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from app.services.access.api_keys import ApiKeys
from app.services.access.secret import read_secret
from app.services.principal import scopes_of
from app.store.database import migrate, open_database
from benchmarks.harness import Connection, Running, hammer, start, stop, wait_ready

CONNECTIONS = 64
PATH = "/best-config?m=1024&n=1024&k=1024"
RESULT = Path("benchmarks/results/serving/authentication.json")
SEED = 20261123
_LEAST = 0.1  # of the rounds


def main() -> None:
    """Measure in turn and write the ratios with their intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        served = {how: _served(Path(folder) / how, how) for how in ("none", "keys")}
        key = _key(Path(folder) / "keys")
        shown = {"none": {}, "keys": {"Authorization": f"Bearer {key}"}}
        running = {how: start(*command) for how, command in served.items()}
        for server in running.values():
            stack.callback(stop, server)
            wait_ready(server)
        draw, rounds = random.Random(SEED), []  # noqa: S311 - it orders rounds
        for _ in range(arguments.rounds):
            order = list(running)
            draw.shuffle(order)
            rounds.append({how: _rate(running[how], shown[how], arguments.seconds) for how in order})
        refused = asyncio.run(_refusals(running["keys"], 2000))
    report = _report(rounds) | {"refusal_cpu_ms": refused * 1e3, "rounds": arguments.rounds, "cores": os.cpu_count()}
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _served(data: Path, how: str) -> tuple[list[str], Path, dict[str, str]]:
    """The command of a service, its log and its settings."""
    data.mkdir()
    migrate(f"sqlite:///{data / 'tilewise.db'}")
    environment = {"TILEWISE_DATA_DIR": str(data), "TILEWISE_LOG_LEVEL": "warning", "TILEWISE_AUTH": how}
    return ["-m", "app.cli", "serve", "--port", "0"], data / "server.log", environment


def _key(data: Path) -> str:
    """A key, made before the service starts."""
    with open_database(f"sqlite:///{data / 'tilewise.db'}") as database:
        keys = ApiKeys(database, read_secret(data / "secret"))
        keys.start()
        return str(keys.create("bench", scopes_of(["read"]))[1])


def _rate(server: Running, headers: dict[str, str], seconds: float) -> dict[str, float]:
    """Requests a second, and seconds of the service's processor for each."""
    before = _cpu(server)
    rate, latencies = asyncio.run(hammer(server.port, PATH, CONNECTIONS, seconds, **headers))
    return {"rate": rate, "cpu_us": (_cpu(server) - before) / len(latencies) * 1e6}


async def _refusals(server: Running, count: int) -> float:
    """Seconds of the service's processor for a request without a key."""
    connection, before = Connection(server.port), _cpu(server)
    for _ in range(count):
        reply = await connection.request("POST", "/tune")
        if reply.status != 401:
            raise RuntimeError(f"/tune answered {reply.status}")
    return (_cpu(server) - before) / count


def _cpu(server: Running) -> float:
    """Seconds of processor that the threads of the service's process have used."""
    threads = Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) * 1e-9


def _report(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians, and the ratios of keys to none with their 95 % intervals by bootstrap."""
    report: dict[str, Any] = {}
    source = np.random.default_rng(SEED)
    for what in ("rate", "cpu_us"):
        each = {how: np.array([one[how][what] for one in rounds]) for how in ("none", "keys")}
        ratios = each["keys"] / each["none"]
        drawn = np.median(source.choice(ratios, (10_000, len(ratios))), axis=1)
        report[what] = {how: median(values) for how, values in each.items()} | {
            "ratio": float(np.median(ratios)),
            "ratio_ci95": _interval(drawn),
        }
    each = {how: np.array([one[how]["cpu_us"] for one in rounds]) for how in ("none", "keys")}
    picked = source.integers(len(rounds), size=(10_000, len(rounds)))
    drawn = np.quantile(each["keys"][picked], _LEAST, axis=1) / np.quantile(each["none"][picked], _LEAST, axis=1)
    least = {how: float(np.quantile(values, _LEAST)) for how, values in each.items()}
    report["cpu_us_undisturbed"] = least | {"ratio": least["keys"] / least["none"], "ratio_ci95": _interval(drawn)}
    return report


def _interval(drawn: np.ndarray[Any, Any]) -> list[float]:
    """95 % of what was drawn."""
    return [float(edge) for edge in np.quantile(drawn, (0.025, 0.975))]


if __name__ == "__main__":
    main()
