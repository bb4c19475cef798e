"""How each target is built and checked, and what its programs say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from shutil import which
from time import monotonic
from typing import Any, Final

_CHECK: Final = "cc -O2 -o check tilewise_check.c -ldl -lm"
_OBJECT: Final = "cc -O2 -c tilewise_gemm.c"
_LIBRARY: Final = "cc -O2 -shared -fPIC -o libtilewise_gemm.so tilewise_gemm.c -ldl"
_RUNTIME: Final = "nvcc -std=c++17 -o example example_runtime.cu tilewise_gemm.o -ldl"
_EXTENSION: Final = (sys.executable, "-c", "import tilewise_torch; tilewise_torch.fast_matmul()")
_COMPILED: Final = str(Path(__file__).parent / "torch_compiled.py")
_PYTHON_CHECK: Final = (sys.executable, "check.py")
Command = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """What a target needs to be installed, the commands that build it, and those that check and time it."""

    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    builds: tuple[Command, ...] = ()
    checks: tuple[Command, ...] = (_PYTHON_CHECK,)

    @property
    def lacking(self) -> list[str]:
        """What of it is not installed."""
        found = [one for one in self.programs if which(one) is None]
        return found + [one for one in self.packages if not installed(one)]


STEPS: Final = {
    "c": Steps(("cc",), (), (_CHECK,), ("./check",)),
    # Without nvcc there is no example for CUDA's runtime: the header and the C ABI are checked alike.
    "cpp": Steps(
        ("cc",),
        (),
        (_OBJECT, *((_RUNTIME,) if which("nvcc") else ()), _CHECK),
        (*(("./example",) if which("nvcc") else ()), "./check"),
    ),
    "cupy": Steps(packages=("cupy",)),
    "cuda-core": Steps(packages=("cuda.core",)),
    "torch": Steps(
        ("cc",),
        ("torch",),
        (_LIBRARY, _CHECK, _EXTENSION),
        ((sys.executable, "tilewise_torch.py"), (sys.executable, _COMPILED), "./check"),
    ),
    "numba": Steps(packages=("numba",)),
    "rust": Steps(
        ("cc", "rustc"),
        (),
        (_OBJECT, "rustc -O -C link-arg=tilewise_gemm.o -C link-arg=-ldl -o multiplies check.rs", _CHECK),
        ("./multiplies", "./check"),
    ),
    "opencl": Steps(packages=("pyopencl",)),
}


@dataclass(frozen=True, slots=True)
class Said:
    """What commands came to: their last lines of JSON as one object, or why one failed."""

    values: dict[str, Any]
    reason: str | None
    seconds: float


def installed(package: str) -> bool:
    """Whether a package, or a module of one, can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def run(commands: Sequence[Command], folder: Path, limit: float, end: float = inf) -> Said:
    """Run commands in a folder, each in `limit` seconds and before the moment `end`, until one fails."""
    values, began = dict[str, Any](), monotonic()
    own = os.environ | {"TORCH_EXTENSIONS_DIR": str(folder / "extensions"), "MAX_JOBS": "2"}
    own |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for command in commands:
        words = command.split() if isinstance(command, str) else command
        allowed = min(limit, end - monotonic())
        if allowed <= 0:
            return Said(values, f"{words[0]}: no time was left", monotonic() - began)
        try:
            ran = subprocess.run(
                words, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=allowed
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            return Said(values, f"{words[0]}: {type(error).__name__}", monotonic() - began)
        values |= last_object(ran.stdout)
        if ran.returncode:
            said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-3:]
            return Said(values, f"{words[0]} gives {ran.returncode}: {' / '.join(said)[-400:]}", monotonic() - began)
    return Said(values, None, monotonic() - began)


def settled(build: Future[Said], end: float) -> Said:
    """What a build came to; where it has not ended by then, or raised, that as its reason."""
    began = monotonic()
    try:
        return build.result(max(0.0, end - began))
    except (TimeoutError, CancelledError):
        return Said({}, "it was not built in time", monotonic() - began)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other targets are measured
        return Said({}, f"its build raises {type(error).__name__}: {error}", monotonic() - began)


def last_object(text: str) -> dict[str, Any]:
    """The object in the last line of what a program printed; empty where that is none."""
    line = text.splitlines()[-1] if text.strip() else ""
    if not line.startswith("{"):
        return {}
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return found
