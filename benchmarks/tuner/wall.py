"""Seconds until a config within 95 % of the whole space's best has been measured: ours against Kernel Tuner.

Both search the same recorded space of one kernel and problem on the same device in one run, from nothing compiled.
A config counts as found when the recording says that it is within 95 % of the recorded best.

    python -m benchmarks.tuner.wall RECORDING [--device cuda] [--seconds 120] [--out wall.json]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from app.devices.fleet import open_fleet
from app.devices.opencl.pocl.cpu_name import rename
from app.services.tuning.trial_runner import TrialRunner
from app.tuning.budget import Budget
from app.tuning.outcome import FinalReport
from app.tuning.replay import Recording, load
from app.tuning.task import Task
from app.tuning.tuner import tune
from app.worker.measuring.trial import FixtureKey
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config

GOOD = 0.95
STRATEGIES = ("genetic_algorithm", "diff_evo")


def ours(recording: Recording, devices: str, seconds: float, seed: int) -> dict[str, Any]:
    """Our tuner's wall time with the strategy auto, child processes started and nothing compiled."""
    kernel = CATALOGUE[recording.kernel]
    with TemporaryDirectory() as cache, open_fleet(devices, Path(cache), 2**26) as fleet:
        unit = fleet.unit()
        problem = recording.problem
        runner = TrialRunner(unit, FixtureKey("wall", problem, seed), lambda: False, lambda _: None)
        task = Task((kernel,), problem, unit.device, "auto", seed)
        started = time.perf_counter()
        found: list[tuple[float, Config]] = []
        for outcome in tune(task, runner, lambda: Budget(seconds=seconds)):
            if not isinstance(outcome, FinalReport) and outcome.kernel == kernel.name:
                found.append((time.perf_counter() - started, outcome.config))
                if _is_good(recording, outcome.config):
                    break
    return _row("tilewise auto", recording, found)


def theirs(recording: Recording, strategy: str, seconds: float, seed: int) -> dict[str, Any]:
    """Kernel Tuner's wall time through CuPy: its own compilation, seven runs a config, no verification."""
    import kernel_tuner  # noqa: PLC0415  a development tool, for this comparison only

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  Kernel Tuner draws from the old generators

    kernel, problem, device = CATALOGUE[recording.kernel], recording.problem, recording.device
    names = list(kernel.space.parameters)
    legal = {tuple(config.values()): kernel.launch(config, problem, device) for config in recording.outcomes}
    seen, on_cuda = _Seen(recording, names), device.platform == "cuda"

    def launch_of(values: dict[str, int]) -> Any:
        return legal.get(tuple(values[name] for name in names))

    def allowed(values: dict[str, int]) -> bool:
        launch = launch_of(values)
        return launch is not None and launch.block == (values["block_size_x"], values["block_size_y"])

    if not on_cuda:
        _name_processor()
    with contextlib.suppress(_Found), _given_more(on_cuda, launch_of):
        kernel_tuner.tune_kernel(
            "matmul",
            _source(legal, names),
            lambda values: (launch_of(values).grid * values["block_size_x"], values["block_size_y"]),
            _arguments(problem, list(legal.values()), seed),
            _parameters(kernel, legal),
            smem_args={"size": lambda values: launch_of(values).dynamic_smem_bytes} if on_cuda else None,
            lang="CUPY" if on_cuda else "OpenCL",
            restrictions=allowed,
            strategy=strategy,
            strategy_options={"max_fevals": 10_000, "time_limit": seconds},
            metrics={"seen": seen.note},
            quiet=True,
        )
    return _row(f"Kernel Tuner {strategy}", recording, seen.found)


class _Found(Exception):
    """A config that counts was measured."""


class _Seen:
    """What Kernel Tuner has measured, with the seconds since this was made."""

    def __init__(self, recording: Recording, names: Sequence[str]) -> None:
        self.found: list[tuple[float, Config]] = []
        self._recording, self._names, self._started = recording, names, time.perf_counter()

    def note(self, values: dict[str, int]) -> int:
        """As a metric, called after each measurement; raises _Found after a good one."""
        config = Config(tuple((name, values[name]) for name in self._names))
        self.found.append((time.perf_counter() - self._started, config))
        if _is_good(self._recording, config):
            raise _Found
        return 0


def _parameters(kernel: Kernel, legal: Mapping[tuple[int, ...], Launch]) -> dict[str, list[int]]:
    """The space's, and the block's sides, which Kernel Tuner takes for parameters too."""
    parameters = {name: list(values) for name, values in kernel.space.parameters.items()}
    for axis, name in enumerate(("block_size_x", "block_size_y")):
        parameters[name] = sorted({launch.block[axis] for launch in legal.values()})
    return parameters


def sides(recording: Recording, options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """A row of ours, and one of each of Kernel Tuner's strategies."""
    yield ours(recording, options.device, options.seconds, seed)
    for strategy in options.strategies:
        yield theirs(recording, strategy, options.seconds, seed)


def _mend_kernel_tuner() -> None:
    """Let it launch what takes over 48 KiB of shared memory, and open a GPU whose UUID has a zero byte.

    Else it would lose those configs, and that GPU: CuPy gives a UUID as far as its first zero.
    """
    import cupy  # noqa: PLC0415  as above
    from kernel_tuner.backends.cupy import CupyFunctions  # noqa: PLC0415  as above

    ask, properties = CupyFunctions.copy_shared_memory_args, cupy.cuda.runtime.getDeviceProperties

    def ask_and_allow(self: Any, shared: dict[str, int]) -> None:
        ask(self, shared)
        self.func.max_dynamic_shared_size_bytes = shared["size"]

    def with_whole_uuid(number: int) -> dict[str, Any]:
        found: dict[str, Any] = properties(number)
        return found | {"uuid": found["uuid"].ljust(16, b"\0")}

    CupyFunctions.copy_shared_memory_args = ask_and_allow
    cupy.cuda.runtime.getDeviceProperties = with_whole_uuid


def _name_processor() -> None:
    """Have PoCL compile in this process too: our tunes do so in a child, Kernel Tuner here, for the first device."""
    import pyopencl  # noqa: PLC0415  as above

    rename(pyopencl.get_platforms()[0].get_devices()[0])


def _is_good(recording: Recording, config: Config) -> bool:
    seconds = recording.seconds(config)
    return seconds is not None and recording.optimum / seconds >= GOOD


def _row(who: str, recording: Recording, found: list[tuple[float, Config]]) -> dict[str, Any]:
    good = next((at for at, config in found if _is_good(recording, config)), None)
    return {"who": who, "evaluations": len(found), "seconds_to_95": good, "seconds": found[-1][0] if found else None}


def _source(legal: dict[Any, Any], names: list[str]) -> str:
    """The kernel's text with what is not tuned defined first; Kernel Tuner defines the rest."""
    build: Build = next(iter(legal.values())).build
    fixed = [f"#define {name} {value}\n" for name, value in build.macros if name not in names]
    return "".join(fixed) + build.text


def _arguments(problem: Problem, launches: Sequence[Launch], seed: int) -> list[Any]:
    """What all configs are given: the operands, the sizes, and the workspace as large as any of them needs."""
    generator = np.random.default_rng(seed)
    shapes = (problem.a_shape, problem.b_shape, (problem.m, problem.n))
    arrays = [generator.standard_normal((problem.batch, *shape)).astype(problem.dtype) for shape in shapes]
    workspace = np.zeros(max(1, *(launch.workspace_bytes for launch in launches)), np.uint8)
    sizes = [np.int64(size) for size in (problem.m, problem.n, problem.k)]
    return [*arrays, *sizes, *([workspace] if launches[0].scalars else [])]


@contextlib.contextmanager
def _given_more(on_cuda: bool, launch_of: Callable[[dict[str, int]], Any]) -> Iterator[None]:
    """Kernel Tuner launching each config with its plan's numbers as well: it gives all configs the same arguments."""
    name, function = ("cupy", "CupyFunctions") if on_cuda else ("opencl", "OpenCLFunctions")
    backend = getattr(importlib.import_module(f"kernel_tuner.backends.{name}"), function)
    make, run = backend.compile, backend.run_kernel

    def make_and_note(self: Any, instance: Any) -> Any:
        self.scalars = [np.int64(number) for number in launch_of(instance.params).scalars]
        return make(self, instance)

    def run_with_more(self: Any, func: Any, given: list[Any], *how: Any, **more: Any) -> None:
        run(self, func, [*given, *self.scalars], *how, **more)

    backend.compile, backend.run_kernel = make_and_note, run_with_more
    try:
        yield
    finally:
        backend.compile, backend.run_kernel = make, run


def main() -> None:
    """Run both sides and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES), help="of Kernel Tuner")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    _mend_kernel_tuner()
    rows: list[dict[str, Any]] = []
    for recording in load(options.recording):
        for seed in range(options.seeds):
            for row in sides(recording, options, seed):
                rows.append({"problem": recording.problem.key, "seed": seed, **row})
                print(rows[-1], flush=True)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
