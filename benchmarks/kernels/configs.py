"""What given configs take on one device, in turn: launch by launch, or for seconds on end, where power limits clocks.

    python -m benchmarks.kernels.configs PLAN OUT [--device cuda:0] [--rounds 3] [--sustained SECONDS] [--until SECONDS]
        [--cache FOLDER]

PLAN is JSON: [[problem key, [[kernel, config], ...]], ...], where null is the kernel's default and the kernel "vendor"
its library. Launches are timed as a tune times them: on operands that no cache has, short ones by the mean of a graph,
others between two events; those that go on for seconds by events alone. Rules of spaces do not count: what they refuse
can be timed, too. A config's product is compared with float64's before, on a small problem. OUT has a line for each
problem, as `--trials` of benchmarks.kernels.drawn writes them: `benchmarks.kernels.fit` reads it. While a problem's
configs are timed, the next one's are compiled. Nothing is begun once `--until` seconds are over. What is compiled stays
in `--cache`, if that is given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, Final, cast

import numpy as np

from app.devices.backend import Backend, WorkerContext
from app.devices.process import WorkerLink
from app.dtypes import Array, numpy_dtype
from app.errors import CompileFailed, LaunchFailed, WrongResult
from app.tuning.measure.racing import EVENTS, policy_of
from app.worker.measuring.contenders import VENDOR, LoadedContender, OperandRotation
from app.worker.measuring.fixture import rotating
from app.worker.serving.launch_class import ready
from benchmarks.kernels.accuracy import opened
from benchmarks.serving.certificates import Alone
from kernels import CATALOGUE
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

_DRAWN: Final = 2**20  # numbers of an operand that are drawn; they come again and again
_AHEAD: Final = 4  # problems whose configs are compiled at once, as a few of each keep no cores busy
_REST: Final = 0.5  # seconds before what goes on for long
_WARM: Final = 1 / 3  # of what goes on for long, before clocks are those of the rest
Line = tuple[str, dict[str, int] | None, float]
Built = tuple[str, Launch | None]
Take = Callable[[int], list[float]]


def main() -> None:
    """Time the plan's configs, and write each problem's once it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sustained", type=float, default=0.0)
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    began, plan = perf_counter(), json.loads(options.plan.read_text(encoding="utf-8"))
    with (
        TemporaryDirectory() as fresh,
        options.out.open("w", encoding="utf-8") as out,
        ThreadPoolExecutor(_AHEAD) as ahead,
    ):
        cache = options.cache or Path(fresh)
        held = WorkerContext(opened(options.device, cache), memoryview(b""))
        builds = [(key, ahead.submit(built, held, key, configs, cache)) for key, configs in plan]
        for key, build in builds:
            if perf_counter() - began > options.until:
                ahead.shutdown(cancel_futures=True)
                break
            found = timed(held, Problem.of_key(key), build.result(), options)
            out.write(json.dumps({"problem": key, "measured": found}) + "\n")
            out.flush()
            print(table(key, found), flush=True)


def timed(held: WorkerContext, problem: Problem, launches: Sequence[Built], options: argparse.Namespace) -> list[Line]:
    """Milliseconds of each config that is right, in the plan's order: a median, or a mean of what went on for long."""
    backend, policy = held.backend, EVENTS if options.sustained else policy_of(problem, held.backend.device)
    sets = rotating(backend, problem, drawn(problem, problem.a_bytes), drawn(problem, problem.b_bytes))
    rotation = OperandRotation(sets)  # of all, since what one has used is in a cache for the next
    chosen = [each for name, one in launches if (each := prepared(held, problem, name, one)) is not None]
    takes = [each.taking(cast("WorkerLink", Alone()), rotation, policy) for each in chosen]
    took: list[list[float]] = [[] for _ in chosen]
    for number in range(options.rounds + 1):
        for take, seconds in zip(takes, took, strict=True):
            found = sustained(take, options.sustained) if options.sustained else take(1)
            seconds.extend(found if number else ())  # the first round warms up
    typical = fmean if options.sustained else median
    return [
        (each.kernel, dict(each.config) if each.kernel != VENDOR else None, 1e3 * typical(seconds))
        for each, seconds in zip(chosen, took, strict=True)
    ]


def built(held: WorkerContext, key: str, configs: Sequence[Any], cache: Path) -> list[Built]:
    """The kernels and launches of a problem's configs, compiled; the vendor has no launch."""
    problem = Problem.of_key(key)
    launches = [(name, None if name == VENDOR else launch(name, config, problem, held)) for name, config in configs]
    compile_ahead([each for _, each in launches if each is not None], held.backend, cache)
    return launches


def drawn(problem: Problem, nbytes: int) -> Array:
    """So many bytes of drawn numbers."""
    dtype = numpy_dtype(problem.dtype)
    count = nbytes // dtype.itemsize
    some = np.random.default_rng(nbytes).standard_normal(min(count, _DRAWN)).astype(dtype)
    return np.resize(some, count)


def launch(name: str, config: Mapping[str, int] | None, problem: Problem, held: WorkerContext) -> Launch:
    """The launch of a config, whether its space's rules allow it or not; None is the default."""
    kernel = CATALOGUE[name]
    if config is None:
        return kernel.launch(kernel.default(problem, held.backend.device), problem, held.backend.device)
    free = replace(kernel, space=replace(kernel.space, rules={}, reads={}))
    return free.launch(free.space.config(config), problem, held.backend.device)


def compile_ahead(launches: Sequence[Launch], backend: Backend, cache: Path) -> None:
    """Compile what CUDA's launches need on all cores, into the cache on disk."""
    if backend.device.platform != "cuda":
        return
    from app.devices.cuda.nvrtc import compile_cubin  # noqa: PLC0415 - only where there is a GPU

    def compiled(one: Launch) -> None:
        with suppress(CompileFailed):  # it is told where the config is prepared
            compile_cubin(one.build, backend.device.architecture, cache)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, launches))


def prepared(held: WorkerContext, problem: Problem, name: str, one: Launch | None) -> LoadedContender | None:
    """A config that is compiled and right, else None, and why on standard output."""
    backend = held.backend
    if one is None:
        run, time = partial(backend.vendor_run, problem), partial(backend.vendor_time, problem)
        return LoadedContender(name, Config.of({}), run, time, 0.0)
    try:
        program = ready(held, cast("WorkerLink", Alone()), one)
    except (CompileFailed, LaunchFailed, WrongResult) as error:
        if error.facts.get("fatal"):
            raise
        print(f"{name} {one.config}: {error.message}", flush=True)
        return None
    return LoadedContender(
        name, one.config, partial(backend.run, program, one), partial(backend.time, program, one), 0.0
    )


def sustained(take: Take, seconds: float) -> list[float]:
    """The seconds of the later ones of launches that go on for so long, after a rest."""
    sleep(_REST)
    found, started = list[float](), perf_counter()
    while not found or perf_counter() - started < seconds:
        found += take(1)
    return found[int(_WARM * len(found)) :]


def table(key: str, found: Sequence[Line]) -> str:
    """The configs of a problem by their times, and what they are of the vendor's."""
    vendor = next((took for kernel, _, took in found if kernel == VENDOR), 0.0)
    lines = [key]
    for kernel, config, took in sorted(found, key=lambda line: line[2]):
        ratio = f"{took / vendor:6.3f} of the vendor's" if vendor else ""
        told = ",".join(f"{name}={value}" for name, value in (config or {}).items())
        lines.append(f"{1e3 * took:12.2f} us {ratio} {kernel} {told}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
