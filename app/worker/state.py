"""The state of a worker between calls, by type: compiled programs, contenders, opened memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.devices.backend import Program
from kernels.launch import Launch


@dataclass
class ProgramCache:
    """Programs of products: by launch once their class is verified, and by the digest of their build."""

    by_launch: dict[Launch, Program] = field(default_factory=dict)
    by_digest: dict[str, Program] = field(default_factory=dict)
    verified: set[tuple[object, ...]] = field(default_factory=set)


@dataclass
class CompilationTimes:
    """Seconds of the slowest compilation so far; None before the first."""

    slowest: float | None = None
