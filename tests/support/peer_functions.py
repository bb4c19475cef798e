"""Contestants that the tests send into a device's child, and a device that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.devices.backend import Operands, WorkerContext
from app.devices.process import WorkerLink
from app.tuning.outcome import Rejected
from app.worker.measuring.contenders import LoadedContender, loaded
from kernels.device import Device, Limits
from kernels.launch import Launch
from kernels.problem import Problem
from kernels.space import Config

H200 = Device(
    *("cuda:0", "cuda", "NVIDIA H200", "sm_90", "", "", "", ""),
    memory_bytes=2**37,
    limits=Limits(
        *(1024, 232448, 32, 132),
        bandwidth=4.8e12,
        peak=66.9e12,
        peak64=33.45e12,
        tensor_float16=989e12,
        tensor_bfloat16=989e12,
        tensor_tf32=494.7e12,
        tensor_float64=66.9e12,
    ),
)


@dataclass(frozen=True)
class Careless:
    """The quickest variant computes nothing; the other is a launch, twice in a row where `also_right` is false."""

    launch: Launch
    also_right: bool
    name: str = "careless"

    def held_to(self, problem: Problem) -> Problem:
        """The contest's own problem."""
        return problem

    def variants(
        self, held: WorkerContext, link: WorkerLink, _problem: Problem
    ) -> Sequence[LoadedContender] | Rejected:
        """Both of them, or the wrong one alone."""
        right = loaded(held, link, self.launch)
        if isinstance(right, Rejected):
            return right

        def idle(_: Operands) -> None:
            pass

        def time(sets: Sequence[Operands], _policy: str) -> list[float]:
            return [1e-9 for _ in sets]

        quick = LoadedContender("careless", Config((("number", 1),)), idle, time, 1e-9)
        return [right, quick] if self.also_right else [quick]
