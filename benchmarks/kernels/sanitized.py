"""Defaults and winners on small, ragged problems of their class, on memory that is as large as it must be.

The process that sanitize.py starts under compute-sanitizer: it says on its standard output which case begins and ends.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.devices.backend import Backend, Buffer, Operands
from app.devices.host_blas import reference
from app.devices.opencl import OpenCLBackend
from app.dtypes import Array, numpy_dtype
from app.tuning.verify.tolerance import POISON, applied, judge, operands
from kernels import CATALOGUE
from kernels.device import Device
from kernels.fp32_emulation import least_k
from kernels.launch import COUNTERS, Launch
from kernels.problem import Problem
from kernels.space import Config

# What defaults are taken for (m, n, k, batch): squares, skinny, tall, deep, ragged, batched, shallow.
USUAL = (
    *((size, size, size, 1) for size in (64, 256, 1024, 4096)),
    *((1, 4096, 4096, 1), (16, 4096, 4096, 1), (4096, 8, 4096, 1), (131_072, 64, 64, 1), (262_144, 16, 32, 1)),
    *((65_536, 128, 512, 1), (64, 64, 131_072, 1), (256, 256, 16_384, 1), (32, 1024, 32_768, 1)),
    *((2047, 2049, 2051, 1), (123, 4567, 8901, 1), (16, 16, 16, 4096), (64, 64, 64, 512), (128, 128, 128, 128)),
    *((4096, 4096, 4, 1), (513, 301, 3, 8)),
)
TRANSPOSITIONS = ((False, False), (False, True), (True, False), (True, True))
# What is launched instead: a few tiles each way and as many phases as slices of k want, then that many more or less.
OFF = ((0, 0, 0), (1, 3, -3), (-1, 4, -4), (4, -3, -1))
PHASES = 4
# The sanitizer's own process prints what it finds: so long after a launch it is taken to have done so.
SPEAKING = 0.2
MARK = "@@ "


@dataclass(frozen=True)
class Case:
    """One config of a kernel, the problem that it is meant for, and the small ones that it is launched on."""

    kernel: str
    config: Config
    own: Problem

    @property
    def name(self) -> str:
        """A line's beginning."""
        return f"{self.kernel:14} {self.config} {self.own.key}"

    @property
    def problems(self) -> list[Problem]:
        """Nowhere larger than its own, so that whatever a tile holds whole still fits."""
        tiles, slices = self.config.get("TILES", 1) + 1, self.config.get("SPLIT_K", 1)
        least = least_k(self.config) if self.own.precision == "emulated" else 0
        deep = PHASES * slices * self.config.get("BK", 16) + least
        tile = CATALOGUE[self.kernel].modelled(self.config)
        most = [tiles * tile["BM"], tiles * tile["BN"], deep]
        batch = min(self.own.batch, 3 * self.config.get("BATCH_PER_BLOCK", 1) + 1)
        sizes = (self.own.m, self.own.n, self.own.k)
        small = [
            [max(1, min(has, has + o, to + o)) for has, to, o in zip(sizes, most, off, strict=True)] for off in OFF
        ]
        found = (replace(self.own, m=m, n=n, k=k, batch=batch) for m, n, k in small)
        return list(dict.fromkeys(problem if self._has_plan(problem) else self._whole(problem) for problem in found))

    def _has_plan(self, problem: Problem) -> bool:
        """Whether a tensor map, which wants rows of whole 16 bytes, can be made where there is one."""
        try:
            CATALOGUE[self.kernel].plan(self.config, problem)
        except ValueError:
            return False
        return True

    def _whole(self, problem: Problem) -> Problem:
        """The problem with sizes of whole 16 bytes, where the case's own are such."""
        step = 16 // problem.itemsize
        whole = [name for name in "mnk" if getattr(self.own, name) % step == 0]
        cut = {name: max(step, getattr(problem, name) // step * step) for name in whole}
        return replace(problem, **cut)

    def launch(self, problem: Problem, device: Device) -> Launch:
        """As the service launches its own problem's binary on another of the class; raises ValueError by a rule."""
        kernel = CATALOGUE[self.kernel]
        return kernel.for_problem(kernel.launch(self.config, self.own, device), problem)


def cases(names: Sequence[str], winners: Sequence[Any], device: Device) -> list[Case]:
    """The defaults of the kernels, each transposition in its turn, and the winners; each once."""
    found = []
    for kernel in (CATALOGUE[name] for name in names):
        for number, (m, n, k, batch) in enumerate(USUAL):
            trans_a, trans_b = TRANSPOSITIONS[number % len(TRANSPOSITIONS)]
            for dtype, precision in kernel.classes:
                own = Problem(m, n, k, batch, dtype, precision, trans_a, trans_b)
                if kernel.covers(own, device):
                    found.append(Case(kernel.name, kernel.default(own, device), own))
    for winner in winners:
        config = CATALOGUE[winner["kernel"]].space.config(winner["config"])
        found.append(Case(winner["kernel"], config, Problem(**winner["problem"])))
    return list({(one.kernel, one.config, one.own.family): one for one in found}.values())


class Processor:
    """Launches on the processor, where buffers are aligned and nobody watches."""

    shifts = (0,)

    def __init__(self, cache_dir: Path) -> None:
        self.backend: Backend = OpenCLBackend("opencl:0", cache_dir)

    def launch(self, launch: Launch, where: Operands) -> str | None:
        """Launch once; says what is wrong beside C."""
        self.backend.run(self.backend.compile(launch.build), launch, where)
        return None


class Gpu:
    """Launches on a GPU, on memory that no pool has made larger."""

    shifts = (0, 1)

    def __init__(self, device: str, cache_dir: Path) -> None:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        from app.devices.cuda import CudaBackend  # noqa: PLC0415 - the same

        cupy.cuda.set_allocator(None)
        self.backend: Backend = CudaBackend(device, cache_dir)

    def launch(self, launch: Launch, where: Operands) -> str | None:
        """Launch once, with the workspace of exactly the plan's size; says where a counter is not zero afterwards."""
        from app.devices.cuda.launch import queue  # noqa: PLC0415 - as above

        workspace = self._workspace(launch.workspace_bytes)
        buffers = (where.a, where.b, where.c, *([workspace] if workspace else []))
        addresses = [int(buffer.handle.ptr) + buffer.offset for buffer in buffers] + ([] if workspace else [0])
        before, after = ([launch.as_step(step) for step in steps] for steps in (launch.before, launch.after))
        for each in (*before, launch, *after):
            queue(self.backend.compile(each.build), each, addresses)
        if workspace is None:
            return None
        counters, verdict = np.empty(COUNTERS, np.int32), np.zeros(1, np.uint32)
        self.backend.download(workspace.window(0, counters.nbytes), counters)
        if launch.verdict_at is not None:
            self.backend.download(workspace.window(launch.verdict_at, verdict.nbytes), verdict)
        declined = f"declined, by {verdict[0]}" if verdict.any() else None
        return "a counter was not put back to zero" if counters.any() else declined

    def _workspace(self, nbytes: int) -> Buffer | None:
        if not nbytes:
            return None
        workspace = self.backend.allocate(nbytes)
        self.backend.fill(workspace, POISON)
        self.backend.fill(workspace.window(0, 4 * COUNTERS), 0)
        return workspace


def placed(backend: Backend, array: Array, shift: int) -> Buffer:
    """An array at the end of an allocation that is as large as it is, but for `shift` bytes before."""
    content = np.concatenate([np.zeros(shift, np.uint8), array.reshape(-1).view(np.uint8)])
    return backend.upload(content).window(shift, array.nbytes)


def checked(place: Processor | Gpu, one: Case, problem: Problem) -> str | None:
    """Launch a config on one problem, and say what is wrong with its product."""
    launch = one.launch(problem, place.backend.device)
    a, b = operands(problem, 7)
    exact = reference(*applied(problem, a, b))
    for shift in (0,) if launch.maps else place.shifts:  # a tensor map starts at a multiple of 16 bytes
        c = np.full((problem.batch, problem.m, problem.n), POISON, np.uint8).repeat(problem.itemsize, axis=2)
        where = Operands(*(placed(place.backend, each, shift * problem.itemsize) for each in (a, b, c)))
        beside = place.launch(launch, where)
        place.backend.download(where.c, c)
        wrong = judge(problem, a, b, exact, c.view(numpy_dtype(problem.dtype))) or beside
        if wrong is not None:
            return f"{problem.key}, {shift} elements off: {wrong}"
    return None


def tell(**facts: Any) -> None:
    """A line for the process that has started this one."""
    print(MARK + json.dumps(facts), flush=True)


def main() -> None:
    """Launch every case after the first `skip`, saying when each begins and ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernels", default=",".join(CATALOGUE))
    parser.add_argument("--winners", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--watched", action="store_true", help="a sanitizer is to have its say after each case")
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    place = Gpu(options.device, options.cache) if cuda else Processor(options.cache)
    device, winners = place.backend.device, json.loads(options.winners.read_text()) if options.winners else []
    todo = cases([name for name in options.kernels.split(",") if name], winners, device)
    tell(device=device.model, of=len(todo))
    for number, one in enumerate(todo[options.skip :], options.skip):
        tell(begins=number, name=one.name, problems=[problem.key for problem in one.problems])
        found = [wrong for problem in one.problems if (wrong := checked(place, one, problem)) is not None]
        time.sleep(SPEAKING if options.watched else 0)
        tell(ends=number, wrong="; ".join(found) or None)


if __name__ == "__main__":
    main()
