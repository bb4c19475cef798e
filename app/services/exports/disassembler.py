"""Cubins as SASS, by nvdisasm where that is installed: CUDA's toolkit has it, and a wheel of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from app.errors import Unsupported

_PATIENCE: Final = 60.0  # seconds; the largest of our cubins takes one


def disassembled(cubin: bytes, *, line_info: bool = False) -> str:
    """The instructions of a cubin, with `line_info` each after the source's line that it is of.

    Raises Unsupported without nvdisasm, or where it does not read the cubin.
    """
    program = _found()
    if program is None:
        raise Unsupported(
            "sass needs nvdisasm, which is not here: CUDA's toolkit has it, and pip install 'tilewise[sass]'"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [program, "--print-code", *(["--print-line-info"] if line_info else []), file.name]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise Unsupported(f"nvdisasm has not read the cubin within {_PATIENCE:.0f} s") from error
    if ran.returncode:
        raise Unsupported(f"nvdisasm does not read the cubin: {ran.stderr.strip().replace(file.name, 'it')[:200]}")
    return ran.stdout


def _found() -> str | None:
    """The program's path: on PATH, in the wheel nvidia-cuda-nvdisasm, or in CUDA's toolkit."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility  # noqa: PLC0415 - there are platforms without it
    except ImportError:
        return shutil.which("nvdisasm")
    found = shutil.which("nvdisasm") or find_nvidia_binary_utility("nvdisasm")
    return None if found is None else str(Path(found))
