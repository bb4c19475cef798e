"""The state of a worker between calls, by type: compiled programs, contenders, opened memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from app.devices.backend import Program, WorkerContext
from app.devices.process import WorkerLink
from kernels.launch import Launch

PROGRAMS: Final = 128  # kept for products: with PoCL a megabyte each, and 0.15 s to load one again
_LAUNCHES: Final = 512  # that are remembered
_SMALL_GRID: Final = 65_535  # threads up to which PoCL compiles a launch on its own


@dataclass
class ProgramCache:
    """Programs of products: by launch once their class is verified, and by the digest of their build.

    The least recently used programs go first, with what was verified of them.
    """

    by_launch: dict[Launch, tuple[str, Program]] = field(default_factory=dict)  # with the build's digest
    by_digest: OrderedDict[str, Program] = field(default_factory=OrderedDict)
    verified: set[tuple[object, ...]] = field(default_factory=set)  # launch classes, which begin with the digest

    def find(self, launch: Launch) -> Program | None:
        """The program of a launch whose class is verified, now the most recently used."""
        known = self.by_launch.get(launch)
        if known is None:
            return None
        self.by_digest.move_to_end(known[0])
        return known[1]

    def remember(self, launch: Launch, digest: str) -> None:
        """A launch's class is verified."""
        if len(self.by_launch) >= _LAUNCHES:
            self.by_launch.clear()
        self.by_launch[launch] = digest, self.by_digest[digest]

    def keep(self, digest: str, program: Program) -> None:
        """Keep a program, now the most recently used."""
        self.by_digest[digest] = program
        self.by_digest.move_to_end(digest)
        while len(self.by_digest) > PROGRAMS:
            gone, _ = self.by_digest.popitem(last=False)
            self.by_launch = {launch: known for launch, known in self.by_launch.items() if known[0] != gone}
            self.verified = {kind for kind in self.verified if kind[0] != gone}


@dataclass
class CompilationTimes:
    """Seconds of the slowest compilation so far, and of the last; None before the first."""

    slowest: float | None = None
    last: float | None = None


def warmed(held: WorkerContext, link: WorkerLink, launch: Launch, allowed: float) -> Program:
    """The program of a launch that is no product, compiled and warmed up in `allowed` seconds each, or kept.

    Raises CompileFailed, LaunchFailed.
    """
    cache, digest = held.state(ProgramCache), launch.build.digest
    program = cache.by_digest.get(digest)
    if program is None:
        link.phase("compile", allowed)
        program = held.backend.compile(launch.build)
    cache.keep(digest, program)
    grids = launch.grid * launch.block[0], *(step.grid * step.block[0] for step in launch.after)
    kind = digest, *(threads > _SMALL_GRID for threads in grids)
    if kind not in cache.verified:
        link.phase("compile", allowed)
        held.backend.warm(program, launch)
        cache.verified.add(kind)
    return program
