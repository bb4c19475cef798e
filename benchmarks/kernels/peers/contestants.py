"""Who takes part in a contest: our kernels, the vendor's library, its candidates, Triton, and who cannot.

Each variant is a LoadedContender, as a tune's candidates are: the same operands, guard bands, clock, graphs and leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from app.devices.backend import Program, WorkerContext
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.tuning.outcome import Rejected
from app.worker.measuring.contenders import LoadedContender, loaded
from benchmarks.kernels.peers.cublaslt import ASKED, candidates
from benchmarks.kernels.peers.shapes import CANDIDATE, TRITON, strictly
from benchmarks.kernels.peers.triton import Cubin, load, told
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config

LAUNCHING = 30.0  # seconds for what a driver puts off until a first launch


class Contestant(Protocol):
    """Whoever computes products: a name, and what it may be launched as on a problem."""

    @property
    def name(self) -> str:
        """What the tables call it."""
        ...

    def variants(self, held: WorkerContext, link: WorkerLink, problem: Problem) -> Sequence[LoadedContender] | Rejected:
        """Every way to launch it that is worth a look, loaded; or why there is none. The fastest takes part."""
        ...

    def held_to(self, problem: Problem) -> Problem:
        """The problem whose tolerance its product must keep."""
        ...


@dataclass(frozen=True, slots=True)
class Ours:
    """One config of a kernel of ours."""

    name: str
    launch: Launch

    def variants(
        self, held: WorkerContext, link: WorkerLink, _problem: Problem
    ) -> Sequence[LoadedContender] | Rejected:
        """The launch."""
        found = loaded(held, link, self.launch)
        return found if isinstance(found, Rejected) else (found,)

    def held_to(self, _problem: Problem) -> Problem:
        """Its own: a strict kernel stands beside those that emulate."""
        return self.launch.problem


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor's library as everybody calls it."""

    name: str

    def variants(self, held: WorkerContext, link: WorkerLink, problem: Problem) -> Sequence[LoadedContender] | Rejected:
        """The library's product."""
        found = loaded(held, link, strictly(problem))
        return found if isinstance(found, Rejected) else (found,)

    held_to = staticmethod(strictly)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The vendor's library with every algorithm that its heuristics propose, up to as many as are asked for."""

    name: str = CANDIDATE
    asked: int = ASKED

    def variants(self, held: WorkerContext, link: WorkerLink, problem: Problem) -> Sequence[LoadedContender] | Rejected:
        """One for each algorithm."""
        if held.backend.device.platform != "cuda":
            return absent(self.name, "only cuBLAS tells its candidates")
        link.phase("launch", LAUNCHING)
        try:
            found = candidates(held.backend, strictly(problem), self.asked)
        except (OSError, AttributeError, LaunchFailed) as error:
            return absent(self.name, str(error))
        return [_foreign(held, self.name, each.described, problem, each) for each in found]

    held_to = staticmethod(strictly)


@dataclass(frozen=True, slots=True)
class TritonTiles:
    """Triton's matmul in every tile that was compiled."""

    cubins: tuple[Cubin, ...]
    name: str = TRITON

    def variants(self, held: WorkerContext, link: WorkerLink, problem: Problem) -> Sequence[LoadedContender] | Rejected:
        """One for each tile that compiled and that the device takes."""
        link.phase("launch", LAUNCHING)
        found, reasons = [], []
        for cubin in self.cubins:
            if cubin.reason is None and cubin.shared_bytes <= held.backend.device.limits.shared_bytes:
                try:
                    function = load(cubin, problem, held.backend)
                except (RuntimeError, LaunchFailed) as error:
                    reasons.append(str(error))
                else:
                    found.append(_foreign(held, self.name, told(cubin.order.tile), problem, function))
            else:
                reasons.append(cubin.reason or "more shared memory than the device allows")
        return found or absent(self.name, next(iter(reasons), "nothing was compiled"))

    held_to = staticmethod(strictly)


@dataclass(frozen=True, slots=True)
class Absent:
    """A contestant that cannot take part, and why."""

    name: str
    reason: str

    def variants(
        self, _held: WorkerContext, _link: WorkerLink, _problem: Problem
    ) -> Sequence[LoadedContender] | Rejected:
        """The reason."""
        return absent(self.name, self.reason)

    held_to = staticmethod(strictly)


def absent(name: str, reason: str) -> Rejected:
    """Why a contestant has nothing to launch."""
    return Rejected(name, Config(()), "space", reason)


def _foreign(
    held: WorkerContext, name: str, config: tuple[tuple[str, int], ...], problem: Problem, handle: Any
) -> LoadedContender:
    """A function that is none of ours, in the form of one that is: its handle knows its own grid and arguments."""
    launch = Launch(name, Config(config), strictly(problem), Build(name, "", name, ()), 1, (1, 1), 0)
    program, naive, device = Program(handle, launch.build), CATALOGUE["naive"], held.backend.device
    return LoadedContender(
        name,
        launch.config,
        run=partial(held.backend.run, program, launch),
        time=partial(held.backend.time, program, launch),
        predicted=predict(naive, naive.default(problem, device), problem, device),
        program=program,
    )
