"""Environment variables for PoCL: its cache in ours, and our linker as `ld`.

Where it would take a built-in library that is not the processor's, it finds another one there, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote

from app.devices.opencl.pocl import linker
from app.devices.opencl.pocl.builtin_library import substituted
from app.devices.opencl.pocl.cpuid import processor


def environment(cache_dir: Path) -> dict[str, str]:
    """The variables to set before pyopencl is imported; makes the folders and the command they name."""
    kernels, commands = cache_dir.absolute() / "pocl", cache_dir.absolute() / "bin"
    kernels.mkdir(parents=True, exist_ok=True)
    # Isolated and without site-packages: the linker starts in milliseconds, and nothing but its own file is read.
    command = f'#!/bin/sh\nexec {quote(sys.executable)} -I -S {quote(linker.__file__)} "$@"\n'
    _put(commands / "ld", command)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    ours = os.pathsep.join([str(commands), *(folder for folder in path if folder != str(commands))])
    found = processor()
    library = substituted(cache_dir, found.features) if found is not None else {}
    return {"PYOPENCL_NO_CACHE": "1", "POCL_CACHE_DIR": str(kernels), "PATH": ours, **library}


def _put(path: Path, command: str) -> None:
    """Write an executable aside and rename it: another child may be running it."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(command, encoding="utf-8")
    aside.chmod(0o700)
    aside.replace(path)
