"""The memory that one request takes beyond the slab, over hostile and honest requests of every kind and several sizes.

python -m benchmarks.serving.faults.memory [--largest 33554432] [--only TEXT]

Each request is sent alone. The kernel's high-water mark of the service's resident memory is reset before it, and what
the slab's pages grew meanwhile is taken off. The bar, for a request of s bytes, decompressed, at most a hundred times
what was sent: 4 s + 32 MiB, and 12 s + 32 MiB of JSON. The head counts where there is no body.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any, Final, Self

from benchmarks.harness import Running, service
from benchmarks.serving.faults.exchange import exchanged
from benchmarks.serving.faults.hostile_requests import HostileRequest, requests_of

RESULT: Final = Path("benchmarks/results/serving/memory.json")
SIZES: Final = (2**16, 2**20, 2**23, 2**25)
FREE: Final = 32 * 2**20  # bytes that any request may take
TIMES, TIMES_JSON = 4, 12
_GLANCE: Final = 0.002
_ENVIRONMENT: Final = {"TILEWISE_SLAB_BYTES": str(2**29), "TILEWISE_RESULT_TTL": "1", "TILEWISE_DEVICES": "opencl"}


@dataclass
class SlabSampler:
    """The most bytes of shared memory that a process had resident since `start`."""

    pid: int
    most: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.most = status(self.pid)["RssShmem"]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.most = max(self.most, status(self.pid)["RssShmem"])

    def _run(self) -> None:
        while not self._ended.wait(_GLANCE):
            self.most = max(self.most, status(self.pid)["RssShmem"])


def main() -> None:
    """Send every request, and write what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest requests")
    parser.add_argument("--only", default="", help="a part of the names of the requests to send")
    arguments = parser.parse_args()
    os.environ.update(_ENVIRONMENT)
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        for size in (size for size in SIZES if size <= arguments.largest):
            for request in requests_of(size):
                if arguments.only in request.name:
                    rows.append(measured(server, request))
                    print(json.dumps(rows[-1]), flush=True)
    report = {
        "requests": len(rows),
        "over": [row for row in rows if row["took"] > row["allowed"]],
        "failed": [row for row in rows if row["status"] in (0, 500)],
        "most_by_kind": _most(rows),
        "sizes": [size for size in SIZES if size <= arguments.largest],
        "bar": {"free": FREE, "times": TIMES, "times_json": TIMES_JSON},
    }
    if not arguments.only:
        RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in ("requests", "over", "failed")}, indent=1))


def measured(server: Running, request: HostileRequest) -> dict[str, Any]:
    """Send one request: what it was answered, and the bytes that it took beyond the slab."""
    pid = server.process.pid
    before = status(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    with SlabSampler(pid) as sampler:
        answered, nbytes = exchanged(server.port, request.head + request.body)
    peak = status(pid)["VmHWM"]
    took = peak - before["VmRSS"] - max(0, sampler.most - before["RssShmem"])
    sleep(_GLANCE)
    return {
        "name": request.name,
        "size": request.size,
        "sent": len(request.body),
        "status": answered,
        "answer": nbytes,
        "took": took,
        "allowed": (TIMES_JSON if request.is_json else TIMES) * request.size + FREE,
    }


def status(pid: int) -> dict[str, int]:
    """The figures of a process's memory, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    parts = [line.split() for line in lines if line.endswith(" kB")]
    return {name[:-1]: 1024 * int(value) for name, value, _ in parts}


def _most(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each kind, the request that came nearest to what it may take."""
    most = dict[str, dict[str, Any]]()
    for row in rows:
        kind = row["name"].partition(":")[0]
        share = row["took"] / row["allowed"]
        if kind not in most or share > most[kind]["share"]:
            most[kind] = {**row, "share": round(share, 3)}
    return list(most.values())


if __name__ == "__main__":
    main()
