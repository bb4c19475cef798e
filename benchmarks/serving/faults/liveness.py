"""How long one request makes others wait for /health/live, searched for the request that makes them wait longest.

python -m benchmarks.serving.faults.liveness [--seconds 600] [--largest 66000000] [--seed 1]

First every kind of request that benchmarks.serving.faults.hostile_requests knows, at sizes up to each limit; then,
until the time is over, heads and texts that are bent at random where the wait grows. The probe is a process of its own,
which asks all the time. The bar: 100 ms beyond the same probe's p99.9 without such requests. What is over it is sent
again, and counts where the shortest of three waits is over it too: others use these cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, Final

from benchmarks.harness import percentile, service
from benchmarks.serving.faults.exchange import exchanged
from benchmarks.serving.faults.hostile_requests import HostileRequest, requests_of

RESULT: Final = Path("benchmarks/results/serving/liveness.json")
SIZES: Final = (2**12, 2**16, 2**17, 2**20, 2**23, 66_000_000)
BAR: Final = 0.1  # seconds beyond the probe's p99.9
_PAUSE: Final = 0.001  # seconds between two probes
_BASELINE: Final = 20.0  # seconds without other requests, before and after
_AGAIN: Final = 3
_TOLD: Final = 20
_ALPHABET: Final = (*" \t,;:=\"'\\/*.-_%&?#+[]{}()<>@!~^|aA09xq", "q=0", "W/", "%00", "\\u", "\\\\", "1e", "bytes=")
_FIELDS: Final = (
    "Accept",
    "Accept-Encoding",
    "Authorization",
    "Connection",
    "Content-Encoding",
    "Content-Type",
    "Cookie",
    "Expect",
    "Forwarded",
    "Host",
    "Idempotency-Key",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "Inference-Header-Content-Length",
    "Origin",
    "Prefer",
    "Range",
    "Referer",
    "Sec-Fetch-Site",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "User-Agent",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Request-ID",
    "baggage",
    "traceparent",
    "tracestate",
)
_TARGETS: Final = (
    ("GET", "/best-config?m=1&n=1&k=1", ""),
    ("POST", "/matmul?m=1&n=1&k=1", "application/octet-stream"),
    ("POST", "/matmul", "application/json"),
    ("POST", "/tune", "application/json"),
    ("POST", "/v2/models/matmul/infer", "application/json"),
    ("PUT", "/matrices/m?shape=1x2", "application/octet-stream"),
    ("GET", "/jobs", ""),
    ("GET", "/", ""),
)
_HEAD: Final = 65_000
_TEXT: Final = 2**17


@dataclass(frozen=True)
class Bent:
    """A request that repeats a unit between a front and an end, in one place: a field, query, path or body."""

    target: tuple[str, str, str]
    place: str
    front: str
    unit: str
    end: str

    def request(self) -> HostileRequest:
        """The request, as long as its place may be."""
        method, path, media = self.target
        limit = _TEXT if self.place == "body" else _HEAD - 400
        text = (
            self.front
            + self.unit * max(0, (limit - len(self.front) - len(self.end)) // max(1, len(self.unit)))
            + self.end
        )
        body = b"\0" * 8 if media.endswith("stream") else b"{}" if media else b""
        headers: tuple[tuple[str, str], ...] = ()
        if self.place == "body":
            body = text.encode("latin-1")
        elif self.place == "query":
            path = f"{path.partition('?')[0]}?{_plain(text)}"
        elif self.place == "path":
            path = path.rstrip("/") + "/" + _plain(text)
        else:
            headers = ((self.place, text.strip()),)
        name = f"{method} {self.target[1]} {self.place}: {self.front[:20]!r} {self.unit!r} {self.end[:20]!r}"
        return HostileRequest(name, path, body, media or "text/plain", method, headers)


def _plain(text: str) -> str:
    """What may stand in a request's first line."""
    return text.replace(" ", "+").replace("\t", "+").replace("#", "+")


class Probe:
    """A process that asks for /health/live all the time; `worst` is the longest wait since `reset`."""

    def __init__(self, port: int) -> None:
        self._worst, self._count = multiprocessing.Value("d", 0.0), multiprocessing.Value("q", 0)
        self._kept = multiprocessing.Manager().list()
        self._keeps = multiprocessing.Value("b", 0)
        self._process = multiprocessing.Process(target=self._run, args=(port,), daemon=True)
        self._process.start()

    def _run(self, port: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=600)
        waits = list[float]()
        while True:
            began = perf_counter()
            connection.request("GET", "/health/live", headers={"Host": "localhost"})
            connection.getresponse().read()
            wait = perf_counter() - began
            with self._worst.get_lock():
                self._worst.value = max(self._worst.value, wait)
            self._count.value += 1
            if self._keeps.value:
                waits.append(wait)
            elif waits:
                self._kept.extend(waits)
                waits = []
            sleep(_PAUSE)

    def reset(self) -> None:
        """Forget the waits so far."""
        self._worst.value = 0.0

    def worst(self) -> float:
        """The longest wait since `reset`, of those that have begun by now too."""
        until = self._count.value + 2
        while self._count.value < until:
            sleep(_PAUSE)
        return float(self._worst.value)

    def quiet(self, seconds: float) -> list[float]:
        """The waits of so many seconds."""
        self._keeps.value = 1
        sleep(seconds)
        self._keeps.value = 0
        sleep(0.5)
        return list(self._kept)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


@dataclass
class Search:
    """What was sent, and how long others waited."""

    port: int
    probe: Probe
    rows: list[dict[str, Any]]

    def take(self, request: HostileRequest) -> float:
        """Send a request: the longest wait meanwhile, in seconds."""
        self.probe.reset()
        status, _ = exchanged(self.port, request.head + request.body)
        wait = self.probe.worst()
        self.rows.append(
            {"name": request.name, "sent": len(request.head) + len(request.body), "status": status, "ms": 1e3 * wait}
        )
        return wait

    def again(self, request: HostileRequest, bar: float) -> float:
        """The shortest of some waits, if the first is over the bar."""
        wait = self.take(request)
        for _ in range(_AGAIN - 1 if wait > bar else 0):
            wait = min(wait, self.take(request))
        self.rows[-1]["ms_at_least"] = 1e3 * wait
        return wait


def main() -> None:
    """Search, and write what made others wait longest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="of bending, after the known kinds")
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["TILEWISE_DEVICES"] = "opencl"
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        probe = Probe(server.port)
        search = Search(server.port, probe, [])
        search.take(HostileRequest("warm-up", "/best-config?m=1&n=1&k=1", method="GET"))
        before = percentile(probe.quiet(_BASELINE), 0.999)
        bar = before + BAR
        for size in (each for each in SIZES if each <= arguments.largest):
            for request in requests_of(size):
                search.again(request, bar)
        kinds = len(search.rows)
        rng = random.Random(arguments.seed)  # noqa: S311 - it bends requests
        climbs = _climbed(search, rng, bar, arguments.seconds)
        after = percentile(probe.quiet(_BASELINE), 0.999)
        probe.close()
    rows = sorted((row for row in search.rows if "ms_at_least" in row), key=lambda row: -row["ms_at_least"])
    report = {
        "seed": arguments.seed,
        "requests": len(search.rows),
        "of_known_kinds": kinds,
        "bent": climbs,
        "baseline_p999_ms": {"before": 1e3 * before, "after": 1e3 * after},
        "bar_ms": 1e3 * bar,
        "over": [row for row in rows if row["ms_at_least"] > 1e3 * bar],
        "failed": [row for row in search.rows if row["status"] in (0, 500)],
        "worst": rows[:_TOLD],
        "cores": os.cpu_count(),
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _climbed(search: Search, rng: random.Random, bar: float, seconds: float) -> int:
    """Bend requests for so long, from each place that makes others wait; gives how many were sent."""
    until, count = monotonic() + seconds, 0
    starts = [_drawn(rng, target, place) for target in _TARGETS for place in _places(target)]
    rng.shuffle(starts)
    best = list[tuple[float, Bent]]()
    for start in _endless(starts, rng):
        if monotonic() > until:
            return count
        bent = _bend(rng, rng.choice(best)[1]) if best and rng.random() < 0.5 else start
        best = sorted([*best, (search.again(bent.request(), bar), bent)], key=lambda one: -one[0])[:_TOLD]
        count += 1
    return count


def _endless(starts: list[Bent], rng: random.Random) -> Iterator[Bent]:
    yield from starts
    while True:
        start = rng.choice(starts)
        yield _drawn(rng, start.target, start.place)


def _places(target: tuple[str, str, str]) -> tuple[str, ...]:
    return (*_FIELDS, "query", "path", *(("body",) if target[2].endswith("json") else ()))


def _drawn(rng: random.Random, target: tuple[str, str, str], place: str) -> Bent:
    units = ["".join(rng.choices(_ALPHABET, k=rng.randint(1, 4))) for _ in range(3)]
    return Bent(target, place, units[0], units[1], units[2])


def _bend(rng: random.Random, bent: Bent) -> Bent:
    """The same with another front, unit, end or place."""
    name = rng.choice(("front", "unit", "end", "unit"))
    text = getattr(bent, name)
    at = rng.randint(0, len(text))
    new = text[:at] + rng.choice(_ALPHABET) + text[at + rng.randint(0, 1) :]
    return replace(bent, **{name: new})


if __name__ == "__main__":
    main()
