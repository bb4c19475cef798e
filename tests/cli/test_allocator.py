"""The C library's allocator as the service has set it, in a process of its own: it holds for the whole process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from app.cli import allocator

_PROGRAM = """
import ctypes, json, threading
from app.cli import allocator
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


def found(folder: Path, *, mended: bool, **environment: str) -> tuple[int, bool]:
    """How many arenas 24 threads have, and whether memory of a text stays after one three times as long was freed."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(mended=mended, file=folder / "arenas")],
        cwd=Path(allocator.__file__).parents[2],
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
