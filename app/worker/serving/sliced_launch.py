"""SlicedLaunch: a tile whose panels come in slices of k is made slice by slice, and added up in C."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from app.devices.backend import AsyncExecution, Operands, Program, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import numpy_dtype
from app.errors import CompileFailed, WrongResult
from app.worker.serving.device_memory import TileTransfer
from app.worker.serving.panel_copies import OperandSlices
from app.worker.serving.tile_buffers import Marked
from app.worker.state import ProgramCache
from kernels import KERNELS
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.split_k import accumulation

_LOG: Final = logging.getLogger(__name__)
_ADDED: Final = "slices are added up"
_CHECKED: Final = 31, 67  # rows and columns of a C that is added to before any other
_SECONDS: Final = 2.0  # that this takes at most


@dataclass(frozen=True, slots=True)
class SlicedLaunch:
    """The launches of a tile's slices with their program, and the one that adds a slice's product to C with its own."""

    program: Program
    slices: tuple[Launch, ...]
    add: Launch
    adder: Program

    def queue(
        self,
        device: AsyncExecution,
        operands: Iterable[OperandSlices],
        c: Marked,
        partials: Sequence[Marked],
    ) -> Any:
        """Queue all of them; gives the mark after which C is there.

        The first slice's product is C; those of the others are made in the `partials` in turn, each once what was in it
        is added. C and these may be written after the marks that they come with. Raises LaunchFailed.
        """
        marks = list[Any]()  # after which C has each slice
        for number, (launch, one) in enumerate(zip(self.slices, operands, strict=True)):
            if number == 0:
                first = Operands(one.a, one.b, c[0])
                marks.append(device.start(self.program, launch, first, _given(*one.after, c[1])))
                continue
            partial, free = partials[(number - 1) % len(partials)]
            free = marks[number - len(partials)] if number > len(partials) else free
            made = device.start(self.program, launch, Operands(one.a, one.b, partial), _given(*one.after, free))
            adding = Operands(partial, partial, c[0])
            marks.append(device.start(self.adder, self.add, adding, _given(made, marks[-1])))
        return marks[-1]


def _given(*marks: Any) -> list[Any]:
    """The marks that there are."""
    return [mark for mark in marks if mark is not None]


def prepare(held: WorkerContext, link: WorkerLink, problem: Problem, allowed: float) -> None:
    """Compile what adds slices of a problem up, and compare it with NumPy once; where it fails, panels come whole."""
    cache, add = held.state(ProgramCache), accumulation(replace(problem, m=_CHECKED[0], n=_CHECKED[1]))
    digest = add.build.digest
    if (digest, _ADDED) in cache.verified:
        return
    try:
        link.phase("compile", allowed)
        program = held.backend.compile(add.build)
        held.backend.warm(program, add)
        link.phase("verify", allowed)
        with link.lease(_SECONDS):
            _check(held, program, add)
    except (CompileFailed, WrongResult) as error:
        _LOG.warning("%s: slices of k are not added up: %s", held.backend.device.id, error.message)
        return
    cache.keep(digest, program)
    cache.verified.add((digest, _ADDED))


def _check(held: WorkerContext, program: Program, add: Launch) -> None:
    """Add integers up; raises WrongResult."""
    terms = np.random.default_rng(0).integers(-99, 99, (2, *_CHECKED)).astype(numpy_dtype(add.problem.dtype))
    partial, c = map(held.backend.upload, terms)
    held.backend.run(program, add, Operands(partial, partial, c))
    found = np.empty_like(terms[1])
    held.backend.download(c, found)
    if not np.array_equal(found, terms[0] + terms[1]):
        raise WrongResult("they differ from NumPy's")


def sliced(
    held: WorkerContext, launch: Launch | None, program: Program | None, tile: TileTransfer
) -> SlicedLaunch | None:
    """How a tile is made whose panels come in slices; None where they have to come whole.

    That is where a launch needs a workspace, steps or an answer, and where what adds slices up is not built.
    """
    if not tile.slices or launch is None or program is None or launch.verdict_at is not None:
        return None
    problem, kernel, add = launch.problem, KERNELS[launch.kernel], accumulation(launch.problem)
    each = tuple(kernel.for_problem(launch, replace(problem, k=k)) for k in tile.slice_k(problem.itemsize))
    adder = held.state(ProgramCache).by_digest.get(add.build.digest)
    is_alone = not any(one.workspace_bytes or one.before or one.after for one in each)
    return SlicedLaunch(program, each, add, adder) if adder is not None and is_alone else None
