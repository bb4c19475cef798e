"""Record which files of ours a request calls, in the service and its workers, for docs/explanation/architecture.md.

    python docs/generate/journeys.py [--check]

A service is started with a profile function in every thread of each of its processes (sys.setprofile). A product, a
best-config answer and a tune are asked for, each in an epoch of its own, the second time on one connection: the first
has loaded what is loaded once. A file counts, once, if one of its functions had a frame in the epoch: from the
request's first byte to the answer's last, of a tune to its job's end. Frames of modules that are being imported do not
count, nor those of threads that run whether or not there is a request, nor the timer that measures the event loop.
The lists between the page's markers are
rewritten; with --check nothing is, and the exit status says whether a request calls more files than the page tells.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from app.cli.spawn import started

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
# Threads that look at something every few seconds whether or not there is a request, by how their names begin or end.
_PERIODIC: Final = (
    "misses",
    "retention",
    "results",
    "late writes",
    "verify defaults",
    "verify ",
    "watch health",
    "heartbeat",
    "lifeline",
    "announce",
)
_WATCH: Final = " watch"  # a worker's heartbeat is looked at
# What the event loop does every quarter of a second of itself.
_TIMER: Final = "app/observability/loop_lag.py"
MOST: Final = 400  # lines of a module
_DONE, _NOT_READY = (200, 202), 503
_RECORDER: Final = """
import mmap, os, sys, threading
_root, _here = os.environ["JOURNEYS_ROOT"], os.environ["JOURNEYS_HERE"]
with open(_here + "/epoch", "r+b") as file:
    _epoch = mmap.mmap(file.fileno(), 1)
_log = os.open(_here + "/log", os.O_WRONLY | os.O_APPEND)
_seen = set()
def _called(frame, event, argument):
    if event == "call":
        key = _epoch[0], frame.f_code.co_filename, threading.current_thread().name
        if frame.f_code.co_name != "<module>" and key not in _seen:
            _seen.add(key)
            if key[1].startswith(_root):
                os.write(_log, f"{key[0]}|{key[2]}|{key[1]}\\n".encode())
sys.setprofile(_called)
threading.setprofile(_called)
"""


class Caller:
    """One connection to a service, and its database to be looked at."""

    def __init__(self, url: str, data: Path) -> None:
        self._connection, self._data = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60), data

    def ask(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
        """A whole exchange; raises RuntimeError for an error."""
        self._connection.request(method, path, body or None, {"Content-Type": content_type} if body else {})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status not in {*_DONE, _NOT_READY}:
            raise RuntimeError(answer.decode())
        return answer

    def tune(self, size: int) -> None:
        """A tune, until its job's end, which is read from the database: another request would be another journey."""
        body = {"shapes": [{"m": size, "n": 64, "k": 64}], "budget": {"trials": 4, "seconds": 20}}
        job = json.loads(self.ask("POST", "/tune", json.dumps(body).encode()))["id"]
        with sqlite3.connect(f"file:{self._data}/tilewise.db?mode=ro", uri=True) as database:
            while database.execute("select state from jobs where id = ?", (job,)).fetchone()[0] in (
                "queued",
                "running",
            ):
                time.sleep(0.1)
        time.sleep(0.2)


@contextmanager
def recorded(folder: Path) -> Iterator[tuple[Caller, Callable[[int], None]]]:
    """A service whose processes record, and what begins an epoch."""
    (folder / "sitecustomize.py").write_text(_RECORDER, encoding="utf-8")
    (folder / "epoch").write_bytes(b"\0")
    (folder / "log").touch()
    path = f"{folder}{os.pathsep}{ROOT}"
    os.environ |= {"JOURNEYS_ROOT": f"{ROOT}/", "JOURNEYS_HERE": str(folder), "PYTHONPATH": path}

    def begin(epoch: int) -> None:
        (folder / "epoch").open("r+b").write(bytes([epoch]))

    with started(folder / "data") as service:
        caller = Caller(service.url, folder / "data")
        while not _is_settled(caller):
            time.sleep(0.2)
        yield caller, begin


def _is_settled(caller: Caller) -> bool:
    """Whether the verification of all defaults has ended."""
    return bool(json.loads(caller.ask("GET", "/health/ready"))["pending"] == 0)


def _has_replaced_a_worker(caller: Caller) -> bool:
    figures = caller.ask("GET", "/metrics").decode()
    return re.search(r"^tilewise_child_restarts_total{.*} [1-9]", figures, re.MULTILINE) is not None


def journeys(folder: Path) -> dict[str, list[str]]:
    """The files that each journey calls, sorted."""
    operands = np.ones(300 * 200 + 200 * 100, np.float32).tobytes()
    raw = "application/octet-stream"
    asked: dict[str, Callable[[Caller, int], object]] = {
        "POST /matmul": lambda caller, _: caller.ask("POST", "/matmul?m=300&n=100&k=200", operands, raw),
        "GET /best-config": lambda caller, _: caller.ask("GET", "/best-config?m=300&n=100&k=200"),
        "POST /tune": lambda caller, size: caller.tune(size),
    }
    with recorded(folder) as (caller, begin):
        for number, ask in enumerate(asked.values(), 1):
            ask(caller, 96)
            begin(number)
            ask(caller, 97)  # a tune that was done is not done again
            begin(0)
            if _has_replaced_a_worker(caller):
                raise SystemExit(f"a worker was replaced during {list(asked)[number - 1]}: record once more")
    lines = [line.split("|", 2) for line in (folder / "log").read_text(encoding="utf-8").splitlines()]
    found: dict[str, list[str]] = {}
    for number, name in enumerate(asked, 1):
        here = [(thread, path) for epoch, thread, path in lines if epoch == str(number)]
        files = {path.removeprefix(f"{ROOT}/") for thread, path in here if not _is_periodic(thread)}
        found[name] = sorted(file for file in files - {_TIMER} if file.startswith(("app/", "kernels/")))
    return found


def _is_periodic(thread: str) -> bool:
    return thread.startswith(_PERIODIC) or thread.endswith(_WATCH)


def own(files: list[str]) -> int:
    """How many files are the service's."""
    return sum(file.startswith("app/") for file in files)


def _lines(file: Path) -> int:
    return len((ROOT / file).read_text(encoding="utf-8").splitlines())


def told(found: dict[str, list[str]]) -> str:
    """The section of the page."""
    parts = []
    for name, files in found.items():
        beside = f" and {len(files) - own(files)} of `kernels`" if own(files) < len(files) else ""
        folders: dict[str, list[str]] = {}
        for file in files:
            folders.setdefault(str(Path(file).parent), []).append(Path(file).name)
        ours = {folder: names for folder, names in folders.items() if folder.startswith("app")}
        least = sum(ceil(sum(map(_lines, map(Path(folder).joinpath, names))) / MOST) for folder, names in ours.items())
        parts.append(
            f"**`{name}`** calls functions of {own(files)} files of `app`{beside}. Those of `app` are in {len(ours)} "
            f"folders, and joined within these as far as {MOST} lines allow would be {least} at least:\n"
        )
        parts += [f"- `{folder}/`: {', '.join(f'`{one}`' for one in names)}" for folder, names in folders.items()]
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    """Write the lists, or compare their lengths with the page's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        found = journeys(Path(folder))
    print(*(f"{name}: {own(files)} files of app, {len(files)} in all" for name, files in found.items()), sep="\n")
    page = PAGE.read_text(encoding="utf-8")
    if check:
        known = {
            name: int(count) for name, count in re.findall(r"\*\*`(.+?)`\*\* calls functions of (\d+) files of", page)
        }
        return int(any(own(files) > known.get(name, 0) + 2 for name, files in found.items()))
    section = f"<!-- recorded: journeys -->\n{told(found)}<!-- end -->"
    PAGE.write_text(
        re.sub(r"<!-- recorded: journeys -->.*?<!-- end -->", lambda _: section, page, flags=re.DOTALL), "utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
