"""Configs at random for small problems of kernels that no processor runs: their products as interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import numpy as np

from app.dtypes import numpy_dtype
from app.tuning.verify.tolerance import judge
from kernels import KERNELS
from kernels.arithmetic import FMA
from kernels.device import Device
from kernels.hopper.plan import is_pingpong
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.pocl_runner import operands, reference
from tests.support.kernels.random_samples import DEVICES, Sample, places

# How far sizes are from whole tiles: where rows are whole 16 bytes in any dtype, and where they hardly ever are.
NEAR: Final = ((-8, 0, 8), (-7, -3, -2, -1, 0, 1, 2, 3, 5))
TILES: Final = (1, 1, 2)
PHASES: Final = (0, 1, 2, 3, 4, 6, 9, 13)
BATCHES: Final = (1, 1, 1, 2, 3)
# SMs of a device on which some blocks wait until others have left, and parameters that count a device's. Of rules,
# three know no device of so few, and one has copies made for large products alone.
FEW_SMS: Final = (1, 2, 3, 4, 6)
COUNTED: Final = ("STREAM_K_SMS", "BLOCKS")
FOR_LARGE: Final = (
    "persistent blocks other than one for each SM",
    "persistent blocks other than one for each SM, or where none has a second tile",
    "packing that takes too long beside the product",
    "C through stages that have another tile next or registers to spare for none, or beside free ones",
)
# Problems asked for a config, configs asked whether they take long, and parameters of which rare values are sought.
ATTEMPTS: Final = 200
TRIED: Final = 20
# Of kernels without a tile, or without a k tile.
SIDES: Final = (1, 8, 32)
K_STEP: Final = 64
SETTLED: Final = 3
MOST: Final = 200  # rounds: some three seconds


def is_interpreted(kernel: Kernel) -> bool:
    """Whether, where there is no GPU, nothing but the interpreter of PTX multiplies by it."""
    return "opencl" not in kernel.platforms


def small(kernel: Kernel, number: int, seeded: str) -> Sample:
    """The small sample of this number: a problem of a few tiles and phases, and a config that is legal for it."""
    rng = Random(f"{seeded} {kernel.name} {number} small")  # noqa: S311 - configs, not secrets
    for _ in range(ATTEMPTS):
        problem = _problem(kernel, kernel.classes[number % len(kernel.classes)], rng)
        device = DEVICES[rng.choice(places(kernel))]
        if rng.random() < 0.5:
            device = replace(device, limits=replace(device.limits, sms=rng.choice(FEW_SMS)))
        if kernel.supports(problem):
            fewer = on_few(kernel, device, rng)
            for config in _varied(fewer.space.legal(problem, device), rng):
                launch = fewer.launch(config, problem, device)
                if rounds(launch) <= MOST:
                    return Sample(launch, device, ())
    raise AssertionError(f"{kernel.name} has no config for {ATTEMPTS} small problems")


def rounds(launch: Launch) -> int:
    """Phases that blocks are in, one after the other; starts and ends of a tile count as two, split operands twice."""
    config, problem = KERNELS[launch.kernel].modelled(launch.config), launch.problem
    tiles = problem.batch * -(-problem.m // config["BM"]) * -(-problem.n // config["BN"])
    k_tiles = -(-problem.k // config.get("BK", K_STEP)) + 2 * config.get("SPLIT_K", 1)
    return tiles * k_tiles * (2 if problem.precision == "emulated" else 1)


def on_few(kernel: Kernel, device: Device, rng: Random) -> Kernel:
    """The kernel with its numbers of SMs such as the device has, were they so few."""
    space, sms = kernel.space, device.limits.sms
    counts = {"STREAM_K_SMS": (0, sms), "BLOCKS": (rng.choice((0, 2, 4)),)}
    parameters = {name: counts.get(name, values) for name, values in space.parameters.items()}
    rules = {reason: rule for reason, rule in space.rules.items() if reason not in FOR_LARGE}
    rules["C through stages of blocks that stay, or beside other blocks"] = _c_in_free_stages
    return replace(kernel, space=replace(space, parameters=parameters, rules=rules))


def _c_in_free_stages(config: Config, _: Problem, __: Device) -> bool:
    """hopper's: of BLOCKS as chosen here, where its rule counts the device's SMs."""
    if not config.get("C_IN_STAGES", 0):
        return True
    return config["MIN_BLOCKS"] == 1 and not config["BLOCKS"] and not is_pingpong(config)


def _problem(kernel: Kernel, kind: tuple[str, str], rng: Random) -> Problem:
    near = rng.choice(NEAR)
    sizes = {"BM": SIDES, "BN": SIDES, "BK": (K_STEP,), **kernel.space.parameters}
    m, n = (rng.choice(sizes[side]) * rng.choice(TILES) + rng.choice(near) for side in ("BM", "BN"))
    k = rng.choice(sizes["BK"]) * rng.choice(PHASES) + rng.choice(near)
    turned = rng.random() < 0.5, rng.random() < 0.5
    return Problem(max(1, m), max(1, n), max(1, k), rng.choice(BATCHES), *kind, *turned)


def _varied(legal: Sequence[Config], rng: Random) -> Iterator[Config]:
    """Some of the legal configs, a rare value of a parameter as often as a frequent one."""
    for _ in range(TRIED if legal else 0):
        left = legal
        counted = [name for name in COUNTED if name in legal[0]]
        for name in (*counted, *rng.sample(list(legal[0]), min(SETTLED, len(legal[0])))):
            value = rng.choice(sorted({config[name] for config in left}))
            left = [config for config in left if config[name] == value]
        yield rng.choice(left)


def expect_interpreted(one: Sample) -> None:
    """Right as interpreted, in an order of blocks and warps at random: exact on small integers, or judged."""
    from tests.ptx_interpreter.launches import interpreted  # noqa: PLC0415 - CuPy is loaded only where something is compiled

    launch, problem = one.launch, one.launch.problem
    draw = Random(str(one))  # noqa: S311 - an order, not a secret
    # Fused multiply-adds of float64 are interpreted where products are not rounded.
    exact_only = problem.dtype == "float64" and KERNELS[launch.kernel].instructions == FMA
    integers = exact_only or (problem.precision != "emulated" and draw.random() < 0.5)
    a, b = operands(problem, np.random.default_rng(draw.getrandbits(32)), integers=integers)
    shift = 0 if launch.maps else draw.choice((0, problem.itemsize, 16 - problem.itemsize))
    # Blocks that share tiles wait for those before them.
    order = None if launch.config.get("STREAM_K_SMS") else draw
    c, _ = interpreted(launch, a, b, one.device, shift, order)
    exact = reference(problem, a, b)
    if integers:
        differing = int((c != exact.astype(numpy_dtype(problem.dtype))).sum())
        assert not differing, f"{one}: {differing} elements are wrong"
    else:
        wrong = judge(problem, a, b, exact.astype(np.float64), c)
        assert wrong is None, f"{one}: {wrong}"
