"""Runs an export's check.py on this host's PoCL, with the service's own workarounds for its wheel.

PoCL takes some processors for others, and then makes code that aborts: python -m tests.support.exports.run_on_pocl
FOLDER CACHE [M N K].
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from app.devices.opencl.backend import discover


def main(folder: str, cache: str, *sizes: str) -> None:
    discover("opencl", Path(cache))
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["check.py", *sizes]
    runpy.run_path("check.py", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
