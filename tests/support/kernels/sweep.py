"""Hundreds of samples a kernel, checked in children, as many as there are cores; a sweep that was stopped goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np

from app.devices.backend import Backend, Buffer, Operands
from app.devices.process import Worker, WorkerLink
from app.dtypes import numpy_dtype
from app.errors import TilewiseError, WrongResult
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from tests.support.kernels.interpretable_samples import expect_interpreted, is_interpreted, small
from tests.support.kernels.pocl_runner import Array
from tests.support.kernels.random_samples import (
    DEVICES,
    Multiply,
    Sample,
    Usage,
    expect_binary,
    expect_products,
    expect_sound,
    is_for,
    on_processor,
    sample,
)

DEADLINE: Final = 300.0  # seconds for one sample
MARGIN: Final = 4096  # bytes of poison around each operand: what a buffer's window may start after
POISON: Final = 0xFF
GPU: Final = "cuda"
INTERPRETER: Final = "ptx"
INTERPRETED: Final = 5  # of so many samples one is interpreted, for a small problem


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sample in one place; `fault` is None where all held."""

    place: str
    digest: str
    number: int
    sample: str
    refused: int
    registers: int = 0
    spills: int = 0
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """What a child works with; `backend` is its GPU, where there is one."""

    cache_dir: Path
    backend: Backend | None


def open_bench(cache_dir: Path, on_gpu: bool) -> Bench:
    """Set up a child."""
    if not on_gpu:
        return Bench(cache_dir, None)
    from app.devices.cuda import CudaBackend  # noqa: PLC0415 - only where there is a GPU

    return Bench(cache_dir, CudaBackend("cuda:0", cache_dir))


def identity(bench: Bench, _: WorkerLink) -> Device | None:
    """The GPU's."""
    return bench.backend.device if bench.backend else None


def check(bench: Bench, _: WorkerLink, place: str, one: Sample) -> Usage:
    """Compile what is CUDA's, run or interpret what can be; raises WrongResult and the project's other errors."""
    try:
        return _checked(bench, place, one)
    except AssertionError as error:
        raise WrongResult(str(error)) from None  # whose text reaches the parent


def _checked(bench: Bench, place: str, one: Sample) -> Usage:
    if place == INTERPRETER:
        expect_interpreted(one)
        return Usage(0, 0)
    expect_sound(one)
    if place == "opencl":
        expect_products(one, on_processor(one.launch))
        return Usage(0, 0)
    usage = expect_binary(one, bench.cache_dir)
    if place == GPU and bench.backend:
        expect_products(one, on_backend(bench.backend, one.launch))
    return usage


def on_backend(backend: Backend, launch: Launch) -> Multiply:
    """A device's products by one compiled kernel; every operand lies among poison, which must stay around C."""
    program = backend.compile(launch.build)
    backend.warm(program, launch)

    def multiply(each: Launch, a: Array, b: Array) -> Array:
        problem = each.problem
        blank = np.full(problem.c_bytes, POISON, np.uint8)
        whole = [_among_poison(backend, array) for array in (a, b, blank)]
        windows = [buffer.window(MARGIN, buffer.nbytes - 2 * MARGIN) for buffer in whole]
        backend.run(program, each, Operands(*windows))
        out = np.empty(whole[2].nbytes, np.uint8)
        backend.download(whole[2], out)
        assert (out[:MARGIN] == POISON).all(), "C was written before its start"
        assert (out[-MARGIN:] == POISON).all(), "C was written past its end"
        return out[MARGIN:-MARGIN].view(numpy_dtype(problem.dtype)).reshape(problem.batch, problem.m, problem.n)

    return multiply


def _among_poison(backend: Backend, array: Array) -> Buffer:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return backend.upload(np.pad(content, MARGIN, constant_values=POISON))


Task = tuple[str, int, Sample]


class Crew:
    """Children that check one sample each at a time; one that dies or hangs over a sample is that sample's fault."""

    def __init__(self, cache_dir: Path, *, on_gpu: bool) -> None:
        self.width = len(os.sched_getaffinity(0))
        self._children = [Worker(f"sweeper {n}", open_bench, (cache_dir, on_gpu)) for n in range(self.width)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for child in self._children:
            self._idle.put(child)

    def gpu(self) -> Device:
        """The GPU that the children hold."""
        found = self._children[0].call(identity)
        assert isinstance(found, Device), "the children hold no GPU"
        return found

    def outcome(self, place: str, number: int, one: Sample) -> Outcome:
        """Check one sample, whatever comes of it."""
        child = self._idle.get()
        usage, fault = Usage(0, 0), None
        try:
            usage = child.call(check, place, one, deadline=DEADLINE)
        except TilewiseError as error:
            fault = error.message
        finally:
            self._idle.put(child)
        return Outcome(place, one.digest, number, str(one), len(one.refused), usage.registers, usage.spills, fault)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Check all, as many at a time as there are children, in the order in which they are done."""
        threads = ThreadPoolExecutor(self.width)
        try:
            for done in as_completed([threads.submit(self.outcome, *task) for task in tasks]):
                yield done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End the children."""
        for child in self._children:
            child.close()


class Sweep:
    """What was found so far, in a folder: a file a kernel, a line an outcome; beside them the seed and the binaries."""

    def __init__(self, folder: Path, seeded: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), (folder / "seed").open("x", encoding="ascii") as kept:
            kept.write(seeded)
        self.seed = (folder / "seed").read_text(encoding="ascii")

    def known(self, kernel: Kernel) -> list[Outcome]:
        """All that was recorded of a kernel, oldest first, less a line that a stop cut short."""
        found: list[Outcome] = []
        path = self._path(kernel)
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            with suppress(ValueError):
                found.append(Outcome(**json.loads(line)))
        return found

    def run(
        self, kernel: Kernel, count: int, places: Sequence[str], told: Callable[[Outcome], None] | None = None
    ) -> list[Outcome]:
        """Check those of the first `count` samples that are not known to be right; gives the outcomes of them all."""
        crew = Crew(self.folder / "binaries", on_gpu=GPU in places)
        try:
            tasks = [*_tasks(kernel, count, places, crew, self.seed)]
            wanted = {(place, one.digest): (place, n, one) for place, n, one in tasks}
            found = {(each.place, each.digest): each for each in self.known(kernel) if each.fault is None}
            for outcome in crew.outcomes([task for key, task in wanted.items() if key not in found]):
                with self._path(kernel).open("a", encoding="utf-8") as records:
                    records.write(f"\n{json.dumps(asdict(outcome))}\n")
                found[outcome.place, outcome.digest] = outcome
                if told is not None:
                    told(outcome)
        finally:
            crew.close()
        return [found[key] for key in wanted]

    def _path(self, kernel: Kernel) -> Path:
        return self.folder / f"{kernel.name}.jsonl"


def _tasks(kernel: Kernel, count: int, places: Sequence[str], crew: Crew, seeded: str) -> Iterator[Task]:
    """The first `count` samples where the kernel is for the device; for the interpreter some small ones."""
    devices = {place: crew.gpu() if place == GPU else DEVICES[place] for place in places if place != INTERPRETER}
    able = [place for place, device in devices.items() if is_for(kernel, device)]
    for number in range(count):
        yield from ((place, number, sample(kernel, devices[place], number, seeded)) for place in able)
    if INTERPRETER in places and is_interpreted(kernel):
        yield from ((INTERPRETER, n, small(kernel, n, seeded)) for n in range(-(-count // INTERPRETED)))


def summary(name: str, outcomes: Sequence[Outcome]) -> str:
    """A line for each place: how many are right, how many not, how many spill and how much, how many were refused."""
    lines = []
    for place in dict.fromkeys(each.place for each in outcomes):
        here = [each for each in outcomes if each.place == place]
        faulty, spills = sum(each.fault is not None for each in here), [each.spills for each in here if each.spills]
        refused = sum(each.refused for each in here)
        lines.append(
            f"{name:16} {place:8} {len(here) - faulty:5} right {faulty:4} faulty {len(spills):4} spilling"
            f" (at most {max(spills, default=0)} bytes) {refused:8} refused by rules on the way"
        )
    return "\n".join(lines)
