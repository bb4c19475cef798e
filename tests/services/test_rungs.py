"""Which rung of the ladder serves a class on an architecture: each gets an answer, from the rung below if it must."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final, cast

import pytest

from app.devices.fleet import Fleet
from app.services.best.lookup import BestConfigs
from kernels import CATALOGUE
from kernels.arithmetic import PATHS
from kernels.device import Device, Limits
from kernels.problem import CLASSES, Problem
from kernels.support import ARCHITECTURES, coverage

# Shared memory that a block may ask for, in KiB (CUDA C++ Programming Guide, "Technical Specifications").
SHARED: Final = {"sm_70": 96, "sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227}
# The kernels of a class of large squares from the top of the ladder, each with the architectures that have it.
MATRIX: Final = {"hopper": {"sm_90"}, "tensor_core": set(ARCHITECTURES) - {"sm_70", "sm_75"}}
NEWER: Final = MATRIX["tensor_core"]
RUNGS: Final[dict[tuple[str, str], dict[str, set[str]]]] = {
    ("float32", "strict"): {"pipelined": NEWER, "register_tiled": set(ARCHITECTURES)},
    ("float32", "tf32"): {**MATRIX, "tiled": set(ARCHITECTURES)},
    ("float64", "strict"): {
        "double_hopper": {"sm_90"},
        "double_tensor": {"sm_80"},
        "register_tiled": set(ARCHITECTURES),
    },
    ("float16", "strict"): {**MATRIX, "wmma": set(ARCHITECTURES), "tiled": set(ARCHITECTURES)},
    ("bfloat16", "strict"): {**MATRIX, "wmma": NEWER, "tiled": set(ARCHITECTURES)},
    ("float32", "emulated"): MATRIX,
    ("float64", "emulated"): {},
}
INSTRUCTIONS: Final = {
    "hopper": "wgmma",
    "tensor_core": "mma.sync",
    "wmma": "wmma",
    "double_hopper": "dmma",
    "double_tensor": "dmma",
}


@dataclass(frozen=True)
class Unit:
    device: Device


@dataclass(frozen=True)
class Shop:
    """A fleet of one device that is nowhere."""

    device: Device

    @property
    def units(self) -> tuple[Unit, ...]:
        return (Unit(self.device),)

    def unit(self, _: str | None) -> Unit:
        return Unit(self.device)


def card(architecture: str) -> Device:
    shared = SHARED.get(architecture, 99) * 1024
    limits = Limits(
        threads=1024,
        shared_bytes=shared,
        warp=32,
        sms=100,
        bandwidth=1e12,
        peak=4e13,
        peak64=2e13,
        registers_per_sm=65536,
        registers_per_thread=255,
        shared_bytes_per_sm=shared + 1024,
        shared_bytes_reserved=0 if architecture < "sm_80" and len(architecture) == len("sm_80") else 1024,
        threads_per_sm=1024 if architecture == "sm_75" else 1536,
        blocks_per_sm=16,
    )
    return Device("cuda:0", "cuda", "a GPU", architecture, "1", "2", "3", "uuid", 2**36, limits)


def rung(architecture: str, dtype: str, precision: str) -> tuple[str, str]:
    """The kernel and the precision in which it computes: what is to be emulated and cannot be is strict."""
    names = RUNGS[dtype, precision]
    found = next((name for name, where in names.items() if architecture in where), None)
    return (found, precision) if found else rung(architecture, dtype, "strict")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "precision"), RUNGS)
def test_every_class_is_served_by_the_architectures_highest_rung(architecture: str, dtype: str, precision: str) -> None:
    bests = BestConfigs(cast("Fleet", Shop(card(architecture))))
    wanted, computed = rung(architecture, dtype, precision)
    for trans_a, trans_b in product((False, True), repeat=2):
        answer = bests.answer(Problem(2048, 2048, 2048, 1, dtype, precision, trans_a, trans_b))
        assert (answer.kernel, answer.launch.problem.precision, answer.match) == (wanted, computed, "default")
        assert (answer.declined is None) == (computed == precision)
        assert answer.instructions == INSTRUCTIONS.get(wanted, "fma")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [(1, 33, 65), (5, 7, 9), (1023, 1023, 1023), (131072, 64, 64), (64, 64, 131072)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_shape_of_any_class_is_left_without_an_answer(architecture: str, size: tuple[int, int, int]) -> None:
    bests = BestConfigs(cast("Fleet", Shop(card(architecture))))
    stored = list(product((1, 3), (False, True), (False, True)))
    for number, (dtype, precision) in enumerate(RUNGS):
        # Half of all ways to be stored: both numbers of products, and each operand in both orders, with every class.
        for batch, trans_a, trans_b in [one for one in stored if (sum(one) + number + size[0]) % 2]:
            asked = Problem(*size, batch, dtype, precision, trans_a, trans_b)
            answer = bests.answer(asked)
            assert CATALOGUE[answer.kernel].covers(answer.launch.problem, card(architecture))
            assert answer.launch.problem in {asked, replace(asked, precision="strict")}
            assert answer.instructions in PATHS


def test_what_a_kernel_is_said_to_cover_is_what_it_computes() -> None:
    for kernel in CATALOGUE.values():
        told = {(one.dtype, one.precision, name) for one in coverage(kernel) for name in one.architectures}
        for (dtype, precisions), name in product(CLASSES.items(), ARCHITECTURES):
            for precision in precisions:
                problem = Problem(2048, 2048, 2048, dtype=dtype, precision=precision)
                computed = kernel.class_refusal(problem, card(name)) is None
                assert computed == ((dtype, precision, name) in told), (kernel.name, dtype, precision, name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_have_a_rung_on_a_processor_too(dtype: str) -> None:
    kernels = [kernel for kernel in CATALOGUE.values() if (dtype, "strict") in kernel.classes]
    assert "opencl" in {one.platform for kernel in kernels for one in coverage(kernel) if one.dtype == dtype}
