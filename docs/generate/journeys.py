"""Record which files of ours a request calls, in the service and its workers, for docs/explanation/architecture.md.

    python docs/generate/journeys.py [--check]

A service is started with a profile function in each of its processes (sys.setprofile, in every thread). A product, a
best-config answer and a tune are asked for, each in an epoch of its own, after a first one of its kind has loaded what
is loaded once. The lists between the page's markers are rewritten; with --check nothing is, and the exit status says
whether a request calls more files than the page tells.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from app.cli.spawn import started
from tilewise import Client

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
_RECORDER: Final = """
import mmap, os, sys, threading
_root, _here = os.environ["JOURNEYS_ROOT"], os.environ["JOURNEYS_HERE"]
with open(_here + "/epoch", "r+b") as file:
    _epoch = mmap.mmap(file.fileno(), 1)
_log = os.open(_here + "/log", os.O_WRONLY | os.O_APPEND)
_seen = set()
def _called(frame, event, argument):
    if event == "call":
        key = _epoch[0], frame.f_code.co_filename
        if key not in _seen:
            _seen.add(key)
            if key[1].startswith(_root):
                os.write(_log, f"{key[0]} {os.path.basename(sys.argv[0])} {key[1]}\\n".encode())
sys.setprofile(_called)
threading.setprofile(_called)
"""


@contextmanager
def recorded(folder: Path) -> Iterator[tuple[Client, Callable[[int], None]]]:
    """A service whose processes record, and what begins an epoch."""
    (folder / "sitecustomize.py").write_text(_RECORDER, encoding="utf-8")
    (folder / "epoch").write_bytes(b"\0")
    (folder / "log").touch()
    path = f"{folder}{os.pathsep}{ROOT}"
    os.environ |= {"JOURNEYS_ROOT": f"{ROOT}/", "JOURNEYS_HERE": str(folder), "PYTHONPATH": path}

    def begin(epoch: int) -> None:
        (folder / "epoch").open("r+b").write(bytes([epoch]))

    with started(folder / "data") as service, Client(service.url) as client:
        while not client.ready():
            time.sleep(0.2)
        time.sleep(2)  # what is verified in the background has ended
        yield client, begin


def journeys(folder: Path) -> dict[str, list[str]]:
    """The files that each journey calls, sorted."""
    a, b = np.ones((300, 200), np.float32), np.ones((200, 100), np.float32)
    asked: dict[str, Callable[[Client, int], object]] = {
        "POST /matmul": lambda client, _: client.matmul(a, b),
        "GET /best-config": lambda client, _: client.best_config(300, 100, 200),
        "POST /tune": lambda client, size: client.tune(f"{size}x64x64", trials=4, seconds=20, wait=True),
    }
    with recorded(folder) as (client, begin):
        for number, ask in enumerate(asked.values(), 1):
            ask(client, 96)
            begin(number)
            ask(client, 97)  # a tune that was done is not done again
            begin(0)
    lines = [line.split(" ", 2) for line in (folder / "log").read_text(encoding="utf-8").splitlines()]
    found: dict[str, list[str]] = {}
    for number, name in enumerate(asked, 1):
        files = {path.removeprefix(f"{ROOT}/") for epoch, _, path in lines if epoch == str(number)}
        found[name] = sorted(file for file in files if file.startswith(("app/", "kernels/")))
    return found


def told(found: dict[str, list[str]]) -> str:
    """The section of the page."""
    parts = []
    for name, files in found.items():
        parts.append(f"**`{name}`** calls functions of {len(files)} files:\n")
        folders: dict[str, list[str]] = {}
        for file in files:
            folders.setdefault(str(Path(file).parent), []).append(Path(file).name)
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
    print(*(f"{name}: {len(files)} files" for name, files in found.items()), sep="\n")
    page = PAGE.read_text(encoding="utf-8")
    if check:
        known = {
            name: int(count) for name, count in re.findall(r"\*\*`(.+?)`\*\* calls functions of (\d+) files", page)
        }
        return int(any(len(files) > known.get(name, 0) + 2 for name, files in found.items()))
    section = f"<!-- recorded: journeys -->\n{told(found)}<!-- end -->"
    PAGE.write_text(
        re.sub(r"<!-- recorded: journeys -->.*?<!-- end -->", lambda _: section, page, flags=re.DOTALL), "utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
