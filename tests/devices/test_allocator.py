"""The C library's allocator as the service has set it, in a process of its own: it holds for the whole process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from app.devices.process import allocator

_PROGRAM = """
import ctypes, json, threading
from app.devices.process import allocator
if {mended}:
    allocator.keep_little()

barrier = threading.Barrier(24)
def work():
    kept = [bytes(5000) for _ in range(100)]
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(24)]
[each.start() for each in threads]
[each.join() for each in threads]
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(b"{file}", b"w"))
library.malloc_info(0, file)
library.fclose(file)

large = bytes(24 * 2**20)
del large
text = bytes(8 * 2**20)
address = id(text)
lines = [line.split()[0].split("-") for line in open("/proc/self/maps")]
low, high = next((int(a, 16), int(b, 16)) for a, b in lines if int(a, 16) <= address < int(b, 16))
del text
kept = any(line.startswith(f"{{low:x}}-") for line in open("/proc/self/maps"))
print(json.dumps([open("{file}").read().count("<heap "), kept]))
"""

_BURST = """
import json, threading
from pathlib import Path
from time import monotonic, sleep
from app.devices.process import allocator
allocator._EVERY = 0.05
allocator.keep_little()
if {mended}:
    allocator.keep_giving_back(threading.Event())

def taken():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))

taken()
before = taken()
burst = [b"x" * 200_000 for _ in range(300)]
last = [b"x" * 5000 for _ in range(300)]  # after the burst in the heap
del burst
until = monotonic() + 5 * {mended}
while taken() - before > 2**23 and monotonic() < until:
    sleep(0.05)
print(json.dumps(taken() - before))
"""


def found(folder: Path, *, mended: bool, **environment: str) -> tuple[int, bool]:
    """How many arenas 24 threads have, and whether memory of a text stays after one three times as long was freed."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(mended=mended, file=folder / "arenas")],
        cwd=Path(allocator.__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    arenas, kept = json.loads(ran.stdout)
    return int(arenas), bool(kept)


def test_few_arenas_keep_memory_and_large_texts_go_back(tmp_path: Path) -> None:
    assert found(tmp_path, mended=True) == (2, False)
    arenas, kept = found(tmp_path, mended=False)
    assert arenas > 2
    assert kept
    assert found(tmp_path, mended=True, MALLOC_ARENA_MAX="3")[0] == 3, "what the operator sets stands"


def test_what_a_burst_freed_goes_back_though_something_lies_behind_it() -> None:
    assert kept_of_a_burst(mended=True) < 2**23
    assert kept_of_a_burst(mended=False) > 50 * 10**6


def kept_of_a_burst(*, mended: bool) -> int:
    """Bytes that a process has more than before it had 60 MB, freed them, and kept 1.5 MB."""
    ran = subprocess.run(
        [sys.executable, "-c", _BURST.format(mended=mended)],
        cwd=Path(allocator.__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(ran.stdout))
