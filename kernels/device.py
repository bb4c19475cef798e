"""A device and its limits, as spaces and the cost model need them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@cache
def _number(architecture: str) -> int:
    found = re.fullmatch(r"sm_(\d+)", architecture)
    return int(found.group(1)) if found else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device on a launch and its speed.

    Threads and shared bytes are per block; 0 is unknown (a CPU has no register file).
    `bandwidth` is bytes/s of global memory, `peak` and `peak64` are flop/s of fused multiply-adds (two each).
    `allocation_bytes` is the largest single buffer, `cache_bytes` the last-level cache. `tensor_float16` and the like
    are flop/s of tensor cores on dense operands, those of 16 bits with sums in float32; 0 if there are none.
    """

    threads: int
    shared_bytes: int
    warp: int
    sms: int
    bandwidth: float
    peak: float
    peak64: float
    registers_per_sm: int = 0
    registers_per_thread: int = 0
    shared_bytes_per_sm: int = 0
    shared_bytes_reserved: int = 0
    threads_per_sm: int = 0
    blocks_per_sm: int = 0
    allocation_bytes: int = 0
    cache_bytes: int = 0
    tensor_float16: float = 0.0
    tensor_bfloat16: float = 0.0
    tensor_tf32: float = 0.0
    tensor_float64: float = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this host: its identity and limits.

    `id` is cuda:0 or opencl:0, `platform` cuda or opencl, `architecture` sm_90 or a processor's name.
    `compiler` names the compiler of kernels, with its version and options.
    `uuid` is provenance, not a key.
    """

    id: str
    platform: str
    name: str
    architecture: str
    driver: str
    runtime: str
    compiler: str
    uuid: str
    memory_bytes: int
    limits: Limits
    mig: str = ""
    exclusive: bool = False

    @property
    def model(self) -> str:
        """The key equal devices share: name, architecture, SMs or cores, memory in GiB, MIG profile."""
        cores = f"{self.limits.sms} {'SMs' if self.platform == 'cuda' else 'cores'}"
        parts = [self.name, self.architecture, cores, f"{round(self.memory_bytes / 2**30)} GiB"]
        return " | ".join(parts + ([self.mig] if self.mig else []))

    @property
    def capability(self) -> int:
        """The number of a CUDA architecture, 90 of sm_90; 0 for others."""
        return _number(self.architecture) if self.platform == "cuda" else 0

    @property
    def environment(self) -> str:
        """Driver, runtime and compiler: a stored timing is stale once they change."""
        return f"{self.driver}; {self.runtime}; {self.compiler}"
