"""Random configs for random problems of a kernel's kind, and what must hold of each, compiled and run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from math import exp, log
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from app.dtypes import numpy_dtype
from app.tuning.verify.tolerance import judge
from kernels import CATALOGUE
from kernels.device import Device
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config, Space
from tests.support.kernels.devices import H200, PROCESSOR
from tests.support.kernels.pocl_runner import Array, compiled, multiplied, operands, reference

A100: Final = replace(
    H200,
    architecture="sm_80",
    limits=replace(H200.limits, shared_bytes=163 * 1024, shared_bytes_per_sm=164 * 1024, sms=108),
)
DEVICES: Final = {"sm_80": A100, "sm_90": H200, "opencl": PROCESSOR}
SPILLED: Final = 256  # bytes of local memory that a config at random may have: little, beside what tuning measures
REGISTERS: Final = 65_536
ATTEMPTS: Final = 20_000
POINTS: Final = 300
NOTHING: Final = Config(())
MULTIPLICATIONS: Final = 2**24
LARGE: Final = 2**31 - 1
WORKSPACE_BYTES: Final = 2**26
LINE: Final = 256  # bytes to which lines of copied operands are filled up at most
# Between what sizes m, n, k and batch are drawn: of any kind, larger, skinny, tall and wide, deep, batched.
KINDS: Final = (
    ((1, 200), (1, 200), (1, 200), (1, 3)),
    ((100, 400), (100, 400), (50, 300), (1, 1)),
    ((1, 33), (33, 1200), (1, 2000), (1, 2)),
    ((33, 1200), (1, 33), (1, 2000), (1, 2)),
    ((2000, 140_000), (1, 130), (1, 130), (1, 1)),
    ((1, 130), (2000, 140_000), (1, 130), (1, 1)),
    ((1, 128), (1, 128), (1000, 20_000), (1, 1)),
    ((1, 130), (1, 130), (1, 130), (16, 500)),
)
MULTIPLES: Final = (1, 1, 4, 8, 32)

Multiply = Callable[[Launch, Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Sample:
    """A legal config for a problem on a device; `refused` are those that rules refused before it, with their names."""

    launch: Launch
    device: Device
    refused: tuple[tuple[Config, str], ...]

    @property
    def kernel(self) -> Kernel:
        return CATALOGUE[self.launch.kernel]

    @property
    def digest(self) -> str:
        """Equal for what is the same to compile and to run."""
        one = self.launch
        builds = [one.build.digest, *(step.build.digest for step in (*one.before, *one.after))]
        plan = (one.problem.key, one.grid, one.block, one.shared_bytes, one.workspace_bytes, one.scalars)
        return sha256(repr((builds, plan, self.device.architecture)).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.launch.kernel} {self.launch.config} on {self.launch.problem.key}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a thread of a config takes: registers, and bytes of local memory."""

    registers: int
    spills: int


@cache
def seed() -> str:
    """What TEST_SEED says, or a fresh one; printed where a test uses it, so that its failure can be had again."""
    return os.environ.get("TEST_SEED") or str(secrets.randbits(32))


def sample(kernel: Kernel, device: Device, number: int, seeded: str) -> Sample:
    """The sample of this number: one problem for all devices, and often one config, as the draws are the same."""
    rng = Random(f"{seeded} {kernel.name} {number}")  # noqa: S311 - configs, not secrets
    problem = drawn(kernel, rng, kernel.classes[number % len(kernel.classes)])
    refused: list[tuple[Config, str]] = []
    for _ in range(POINTS):
        config = anywhere(kernel, rng)
        reason = kernel.space.refusal(config, problem, device)
        if reason is None:
            return Sample(kernel.launch(config, problem, device), device, tuple(refused))
        refused.append((config, reason))
    found = built_up(kernel.space, problem, device, rng)
    assert found, f"{kernel.name} suits {problem.key} and has no legal config for it on {device.platform}"
    return Sample(kernel.launch(found, problem, device), device, tuple(refused))


def built_up(space: Space, problem: Problem, device: Device, rng: Random, begun: Config = NOTHING) -> Config | None:
    """A legal config, a value at random after the other, where few points are legal; None where none is."""
    if len(begun) == len(space.parameters):
        return begun
    before = set(begun)
    name = list(space.parameters)[len(begun)]
    reads = {reason: set(space.reads.get(reason, space.parameters)) for reason in space.rules}
    asked = [space.rules[reason] for reason, names in reads.items() if name in names and names <= {*before, name}]
    for value in rng.sample(space.parameters[name], len(space.parameters[name])):
        config = Config((*begun.items_, (name, value)))
        if all(holds(config, problem, device) for holds in asked):
            found = built_up(space, problem, device, rng, config)
            if found is not None:
                return found
    return None


def anywhere(kernel: Kernel, rng: Random) -> Config:
    """Any point of the space, legal or not."""
    return Config(tuple((name, rng.choice(values)) for name, values in kernel.space.parameters.items()))


def drawn(kernel: Kernel, rng: Random, of: tuple[str, str], most: int = MULTIPLICATIONS) -> Problem:
    """A problem of a class that the kernel suits: any kind, transposed or not, ragged or of whole packs and warps."""
    for _ in range(ATTEMPTS):
        multiple = rng.choice(MULTIPLES)
        m, n, k, batch = (_between(rng, *bounds) for bounds in rng.choice(KINDS))
        m, n, k = (-(-size // multiple) * multiple for size in (m, n, k))
        turned = rng.random() < 0.5, rng.random() < 0.5
        problem = Problem(m, n, k, batch, *of, *turned)
        if batch * m * n * k <= most and kernel.supports(problem):
            return problem
    raise AssertionError(f"{kernel.name} suits none of {ATTEMPTS} problems with at most {most} products")


def _between(rng: Random, least: int, most: int) -> int:
    """As often between 1 and 2 as between 512 and 1024."""
    return int(exp(rng.uniform(log(least), log(most + 1))))


def expect_sound(one: Sample) -> None:
    """The plan keeps what every plan must keep; rules read what they say; every refusal is by a rule of the space."""
    launch, limits, space = one.launch, one.device.limits, one.kernel.space
    assert 1 <= launch.grid <= LARGE, (str(one), launch.grid)
    assert 1 <= launch.threads <= limits.threads, (str(one), launch.threads)
    assert launch.shared_bytes <= limits.shared_bytes, (str(one), launch.shared_bytes)
    assert launch.grid % launch.cluster == 0, (str(one), launch.grid)
    assert launch.workspace_bytes <= most_scratch(launch), (str(one), launch.workspace_bytes)
    assert not launch.workspace_bytes or launch.scalars, f"{one}: the workspace is an argument only beside scalars"
    for reason, names in space.reads.items():
        part = Config(tuple((name, value) for name, value in launch.config.items() if name in names))
        assert space.rules[reason](part, launch.problem, one.device), (str(one), reason)
    assert {reason for _, reason in one.refused} <= set(space.rules), str(one)


def most_scratch(launch: Launch) -> int:
    """Bytes of slices' sums, and of copies of operands where steps before the launch make them, in whole lines."""
    problem, copies = launch.problem, 0
    for lines, length in (problem.a_shape, problem.b_shape) if launch.before else ():
        either = max(lines * -(-length * problem.itemsize // LINE), length * -(-lines * problem.itemsize // LINE))
        copies += problem.batch * (either + lines + length) * LINE
    return WORKSPACE_BYTES + copies


def expect_binary(one: Sample, cache_dir: Path) -> Usage:
    """It compiles for the sample's architecture, and its registers are there; raises CompileFailed."""
    from app.devices.cuda import compile_cubin  # noqa: PLC0415 - CuPy is loaded only where something is compiled

    builds = [step.build for step in (*one.launch.before, *one.launch.after)] + [one.launch.build]
    *steps, cubin = [compile_cubin(build, one.device.architecture, cache_dir) for build in builds]
    for each in (*steps, cubin):
        assert not each.warnings, f"{one}: {each.warnings}"
    usage = Usage(cubin.registers or 0, cubin.spills or 0)
    held = one.launch.config.get("MIN_BLOCKS", 1) * -(-one.launch.threads // 32) * 32
    assert cubin.registers is not None, f"{one}: ptxas has not said what a thread takes"
    assert usage.spills <= SPILLED, f"{one} spills {usage.spills} bytes for {one.device.architecture}"
    assert usage.registers * held <= REGISTERS, f"{one} takes {usage.registers} registers a thread"
    return usage


def expect_products(one: Sample, multiply: Multiply) -> None:
    """Right on normal numbers, the same bits twice, and exact on small integers around the tile's edges."""
    launch = one.launch
    problem = launch.problem
    rng = np.random.default_rng(list(one.digest.encode()))
    a, b = operands(problem, rng)
    c = multiply(launch, a, b)
    wrong = judge(problem, a, b, reference(problem, a, b).astype(np.float64), c)
    assert wrong is None, f"{one}: {wrong}"
    assert np.array_equal(multiply(launch, a, b), c), f"{one}: another product for the same operands"
    for near in edges(one):
        a, b = operands(near.problem, rng, integers=True)
        exact = reference(near.problem, a, b, integers=True).astype(numpy_dtype(near.problem.dtype))
        differing = int((multiply(near, a, b) != exact).sum())
        assert not differing, f"{one}: {differing} elements are wrong on {near.problem.key}"


def edges(one: Sample) -> Iterator[Launch]:
    """The same binary on sizes just past its tile's multiples, just short of them, and on them, where it is legal."""
    config, problem, kernel = one.launch.config, one.launch.problem, one.kernel
    for off in ((1, -1, 1), (-1, 3, -1), (0, 0, 0), (4, -4, 4)):
        tiles = [config.get(name, 1) for name in ("BM", "BN", "BK")]
        m, n, k = map(_beside, (problem.m, problem.n, problem.k), tiles, off)
        near = replace(problem, m=m, n=n, k=k)
        work = near.batch * m * n * k
        if work <= 2 * MULTIPLICATIONS and kernel.supports(near) and not kernel.space.refusal(config, near, one.device):
            yield kernel.launch(config, near, one.device)


def _beside(size: int, tile: int, off: int) -> int:
    return max(1, max(1, round(size / tile)) * tile + off)


def on_processor(launch: Launch) -> Multiply:
    """PoCL's products by one compiled kernel."""
    program = compiled(launch.build)
    return lambda each, a, b: multiplied(program, each, a, b)


def is_for(kernel: Kernel, device: Device) -> bool:
    """Whether the kernel is one for such devices at all."""
    return device.platform in kernel.platforms and device.architecture in (
        kernel.architectures or [device.architecture]
    )


def places(kernel: Kernel) -> Sequence[str]:
    """Where samples of a kernel can be checked without a GPU."""
    return [name for name, device in DEVICES.items() if is_for(kernel, device)]
