"""Winners of every kernel, made without a device, and random problems around theirs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.exports.manifest import manifest_of
from app.exports.recipe import recipe_of
from app.exports.winner import ExportBinary, Winner
from kernels import CATALOGUE
from kernels.device import Device
from kernels.launch import Build, Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200, PROCESSOR

# Problems that each kernel computes, whose untuned configs pack, split k, emulate, share tiles and do none of these.
PROBLEMS: dict[str, tuple[Problem, ...]] = {
    "naive": (Problem(200, 300, 150), Problem(64, 64, 64, 3, "float16", trans_a=True)),
    "tiled": (Problem(200, 300, 150), Problem(1000, 1016, 1003, 3, "bfloat16", trans_b=True)),
    "register_tiled": (Problem(1000, 1016, 1003, 3), Problem(256, 256, 4096)),
    "pipelined": (Problem(1024, 1024, 1024), Problem(256, 256, 4096), Problem(1000, 1001, 1003, trans_b=True)),
    "rank_k": (Problem(2000, 3000, 17), Problem(1000, 1001, 32, 3, trans_a=True, trans_b=True)),
    "gemv": (Problem(1, 3000, 1001), Problem(5000, 3, 999, 3, "float16", trans_a=True)),
    "outer": (Problem(300, 1001, 1), Problem(100, 31, 3, 2, "bfloat16")),
    "skinny": (Problem(4, 1024, 1024), Problem(4096, 1, 4096, dtype="float16")),
    "batched": (Problem(32, 32, 32, 4096), Problem(24, 20, 28, 999, "float64")),
    "tall": (Problem(64, 8192, 64), Problem(8192, 64, 64, dtype="float64")),
    "double_tensor": (
        Problem(1024, 1024, 1024, dtype="float64"),
        Problem(256, 256, 4096, dtype="float64"),
        Problem(1536, 1536, 1536, dtype="float64"),
    ),
    "double_hopper": (
        Problem(256, 256, 256, dtype="float64", trans_b=True),
        Problem(2048, 2048, 1024, 2, "float64", trans_a=True),
    ),
    "wmma": (Problem(1000, 1016, 1003, dtype="float16"),),
    "tensor_core": (
        Problem(1024, 1024, 1024, dtype="bfloat16"),
        Problem(1000, 1001, 1003, dtype="float16"),
        Problem(512, 512, 2048, precision="emulated"),
    ),
    "hopper": (
        Problem(1024, 1024, 1024, dtype="bfloat16"),
        Problem(1000, 1001, 1003, dtype="float16"),
        Problem(256, 256, 4096, dtype="float16", trans_a=True),
        Problem(512, 512, 2048, precision="emulated"),
        Problem(1024, 512, 2048, precision="tf32"),
    ),
    "direct_tensor": (Problem(4096, 4096, 32, dtype="float16"), Problem(99, 101, 500, precision="tf32")),
    "direct_double": (Problem(1250, 1116, 66, dtype="float64"), Problem(17, 135, 4350, 2, "float64", trans_b=True)),
}

# One problem of each kernel, none of whose matrices is over 4 MiB: what the tests' callers hold.
SMALL: dict[str, Problem] = {
    "naive": Problem(64, 64, 64),
    "tiled": Problem(200, 300, 150),
    "register_tiled": Problem(256, 256, 4096),
    "pipelined": Problem(256, 256, 4096),
    "rank_k": Problem(1000, 1000, 17),
    "gemv": Problem(1, 1000, 1001),
    "outer": Problem(300, 1001, 1),
    "skinny": Problem(4, 1024, 1024),
    "batched": Problem(32, 32, 32, 256),
    "tall": Problem(8192, 64, 64, dtype="float64"),
    "double_tensor": Problem(256, 256, 2048, dtype="float64"),
    "double_hopper": Problem(512, 512, 512, dtype="float64"),
    "wmma": Problem(256, 256, 256, dtype="float16"),
    "tensor_core": Problem(512, 512, 2048, precision="emulated"),
    "hopper": Problem(256, 256, 4096, dtype="float16", trans_a=True),
    "direct_tensor": Problem(1024, 1024, 32, dtype="float16"),
    "direct_double": Problem(250, 1116, 66, dtype="float64"),
}


def bare(build: Build) -> ExportBinary:
    """A build of which nothing is compiled."""
    return ExportBinary(build)


def winner(
    kernel: str,
    problem: Problem,
    device: Device = H200,
    compiled: Callable[[Build], ExportBinary] = bare,
    config: Config | None = None,
) -> Winner:
    """A kernel's config, the untuned one if none is given, as a winner."""
    config = config or CATALOGUE[kernel].default(problem, device)
    recipe = recipe_of(CATALOGUE[kernel], config, problem, device)
    binaries = tuple(map(compiled, recipe.builds))
    return Winner(problem, kernel, config, device, recipe, binaries, "default", "events", "none")


@dataclass(frozen=True)
class Case:
    """A winner, its manifest, and the service's own launch."""

    winner: Winner
    manifest: dict[str, object]
    launch: Launch

    def service(self, problem: Problem) -> Launch:
        """The service's launch of the same binary on another problem."""
        return CATALOGUE[self.winner.kernel].for_problem(self.launch, problem)


def case(kernel: str, problem: Problem, device: Device = H200, config: Config | None = None) -> Case:
    """A winner's case, of which nothing is compiled."""
    made = winner(kernel, problem, device, config=config)
    return Case(made, manifest_of(made), CATALOGUE[kernel].launch(made.config, problem, device))


def cases() -> list[Case]:
    """One of each kernel and problem; on the CPU, too, where it has the kernel."""
    return [
        case(name, problem, device)
        for name, problems in PROBLEMS.items()
        for problem in problems
        for device in (H200, PROCESSOR)
        if CATALOGUE[name].covers(problem, device)
    ]


def around(problem: Problem, seed: int) -> Iterator[Problem]:
    """Random problems without end: the very one, its neighbours, and others from a hundredth to a hundred times."""
    generator = random.Random(seed)  # noqa: S311 - problems are drawn, not secrets
    yield problem
    while True:
        sizes: dict[str, Any] = {name: _drawn(generator, getattr(problem, name)) for name in ("m", "n", "k")}
        yield replace(problem, **sizes, batch=generator.choice((1, problem.batch, generator.randint(1, 5000))))


def _drawn(generator: random.Random, size: int) -> int:
    way = generator.random()
    if way < 0.3:
        return size
    near = size + generator.randint(-40, 40) if way < 0.6 else int(size * 10 ** generator.uniform(-1, 1))
    return max(1, near // generator.choice((1, 1, 8, 16)) * generator.choice((1, 1, 8, 16)))
