"""Winner: all that an export is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from app.exports.recipe import Recipe
from kernels.device import Device
from kernels.launch import Build
from kernels.problem import Problem
from kernels.space import Config


@dataclass(frozen=True, slots=True)
class ExportBinary:
    """A build with what was compiled of it: a cubin and PTX on CUDA, neither on OpenCL, which compiles the source.

    `sass` is the cubin's instructions, for the target that is of them.
    """

    build: Build
    cubin: bytes | None = None
    ptx: str | None = None
    registers: int | None = None
    spills: int | None = None
    sass: str | None = None

    @property
    def entry(self) -> str:
        """The name of its function, by which its files are called."""
        return self.build.entry

    @property
    def ptx_version(self) -> str | None:
        """The version of the PTX ISA that it needs a driver for."""
        found = re.search(r"^\.version\s+(\S+)", self.ptx or "", re.MULTILINE)
        return found.group(1) if found else None

    @property
    def source(self) -> str:
        """The source as this config compiles it: its macros written out at the top."""
        macros = "".join(f"#define {name} {value}\n" for name, value in self.build.macros)
        return f"{macros}\n{self.build.text}"


@dataclass(frozen=True, slots=True)
class Winner:
    """A kernel and config for a class of problems on a device, with its binaries and what was measured of it.

    `problem` is the one it was chosen for, in the precision in which it is computed. What was not measured is None.
    """

    problem: Problem
    kernel: str
    config: Config
    device: Device
    recipe: Recipe
    binaries: tuple[ExportBinary, ...]
    match: str
    policy: str
    environment: str
    median_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    samples: int | None = None
    relative_l2: float | None = None

    @property
    def suffix(self) -> str:
        """The suffix of a source's file."""
        return "cl" if self.device.platform == "opencl" else "cu"

    @property
    def name(self) -> str:
        """A name for its folder, such as tilewise-hopper-512x512x512-bfloat16."""
        shape = f"{self.problem.m}x{self.problem.n}x{self.problem.k}"
        batch = f"x{self.problem.batch}" if self.problem.batch > 1 else ""
        return f"tilewise-{self.kernel}-{shape}{batch}-{self.problem.dtype}"

    @property
    def cubin_digests(self) -> dict[str, str]:
        """The SHA-256 of each cubin, by the name of its function."""
        return {each.entry: sha256(each.cubin).hexdigest() for each in self.binaries if each.cubin is not None}

    def binary(self, entry: str) -> ExportBinary:
        """The binary of a function; raises KeyError if it has none."""
        return {each.entry: each for each in self.binaries}[entry]
