"""Compiles CUDA C++ with NVRTC; cubins are cached on disk with ptxas's figures."""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Final

from cupy.cuda import compiler, nvrtc

from app.devices import binary_cache
from app.devices.cuda.nvrtc_options import options, target
from app.errors import CompileFailed
from kernels.launch import Build

# What only an architecture with the suffix a has.
_SPECIFIC: Final = re.compile(r"\bwgmma\b|\bsetmaxnreg\b")
# Where program and section headers lie in an ELF file, and the bytes and number of each.
_ELF_TABLES: Final = struct.Struct("<32x2Q6x4H")
_WHOLE: Final = "whole"  # in the names of cached cubins: those before lack their last byte
_LINES: Final = "-lineinfo"  # the same instructions, each with the line of the source that it is of
_EMPTY: Final = Build("empty", 'extern "C" __global__ void matmul() {}', "matmul", ())
LOADED_FOR: Final = "sm_80"  # every NVRTC from 12 to 13 makes binaries for it
_UNCACHED: Final = (12, 9)  # the first NVRTC that has a cache, and an option that passes it over
_WAITS: Final = re.compile(r"^.*\bC75\d\d\b.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled binary on disk, with registers and bytes of local memory of a thread.

    Both are None if ptxas was not run: NVRTC 13 has a cache of its own, without these. `warnings` are ptxas's messages
    about serialised wgmma (C7510 and similar). `seconds` are those that compiling it took, which may be long ago.
    """

    path: Path
    registers: int | None
    spills: int | None
    seconds: float
    warnings: tuple[str, ...] = ()


def compile_cubin(build: Build, architecture: str, cache_dir: Path, *, line_info: bool = False) -> Cubin:
    """Compile a build for an architecture such as sm_90, or find it compiled and unchanged; needs no GPU.

    `line_info`: with the source's lines. Raises CompileFailed with the compiler's words.
    """
    given = (*options(architecture), *([_LINES] if line_info else ()))
    macros = tuple(f"-D{name}={value}" for name, value in build.macros)
    # A digest is of the code without comments, which lines count.
    exact = [sha256(build.text.encode()).hexdigest()] if line_info else []
    key = binary_cache.name(build.digest, *exact, *given, _compiler(), _WHOLE)
    path = cache_dir / "cuda" / f"{key}.cubin"
    facts = binary_cache.read(path)
    if facts is None or "seconds" not in facts:  # which caches before did not tell
        started = monotonic()
        binary, log = _nvrtc(build, (*given, *macros))
        binary, seconds = _whole(binary), round(monotonic() - started, 6)
        facts = {**_usage(log, build.entry), "warnings": _WAITS.findall(log), "seconds": seconds}
        binary_cache.write(path, binary, facts)
    return Cubin(path, facts["registers"], facts["spills"], facts["seconds"], tuple(facts["warnings"]))


def compile_ptx(build: Build, architecture: str, *, line_info: bool = False) -> str:
    """Compile a build to PTX, for this architecture and, without instructions of its own, for those after it.

    `line_info`: with the source's lines. Raises CompileFailed with the compiler's words.
    """
    given = [_LINES] if line_info else []
    given += [option for option in options(architecture) if not option.startswith(("-arch", "--ptxas"))]
    exact = target(architecture) if _SPECIFIC.search(build.text) else architecture
    macros = (f"-D{name}={value}" for name, value in build.macros)
    ptx, _ = _nvrtc(build, (f"-arch={exact.replace('sm_', 'compute_')}", *given, *macros), "ptx")
    return ptx.decode().rstrip("\0")


def load_nvrtc() -> None:
    """Load NVRTC and its builtins, as the first compilation does: an empty kernel is compiled. Raises CompileFailed."""
    uncached = ("--no-cache",) if nvrtc.getVersion() >= _UNCACHED else ()
    _nvrtc(_EMPTY, (*options(LOADED_FOR), *uncached))


def _compiler() -> str:
    major, minor = nvrtc.getVersion()
    return f"NVRTC {major}.{minor}"


def _nvrtc(build: Build, given: tuple[str, ...], method: str = "cubin") -> tuple[bytes, str]:
    """Compile; gives the binary with the log. _NVRTCProgram is CuPy's own name: nothing public makes a cubin."""
    log = io.StringIO()
    try:
        program = compiler._NVRTCProgram(build.text, f"{build.name}.cu", method=method)  # noqa: SLF001 - as said above
        binary, _ = program.compile(given, log)
    except compiler.CompileException as error:
        raise CompileFailed(error.get_message().strip()) from error
    except (nvrtc.NVRTCError, RuntimeError) as error:
        raise CompileFailed(f"NVRTC: {error}") from error
    return binary.encode() if isinstance(binary, str) else bytes(binary), log.getvalue()


def _whole(cubin: bytes) -> bytes:
    """A cubin to the end of its last table: CuPy takes its last byte, a zero, for the end of a text."""
    programs, sections, *of = _ELF_TABLES.unpack_from(cubin)
    return cubin.ljust(max(programs + of[0] * of[1], sections + of[2] * of[3]), b"\0")


def _usage(log: str, entry: str) -> dict[str, int | None]:
    """Registers, and bytes of local memory, of one thread as ptxas reports them for the function."""
    report = log[log.find(f"Compiling entry function '{entry}'") :]
    registers = re.search(r"Used (\d+) registers", report)
    stack = re.search(r"\b(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    if registers is None or stack is None:
        return {"registers": None, "spills": None}
    return {"registers": int(registers.group(1)), "spills": max(int(stack.group(1)), int(stack.group(2)))}
