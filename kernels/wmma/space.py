"""The space of wmma: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.problem import Problem
from kernels.rules import DECLARED_BYTES, grid_fits, threads_fit
from kernels.space import Config, Space
from kernels.wmma.plan import shared_bytes, threads


def _shared_fits(config: Config, problem: Problem, _: Device) -> bool:
    return shared_bytes(config, problem) <= DECLARED_BYTES


SPACE: Final = Space(
    parameters={"BM": (16, 32, 64, 128), "BN": (16, 32, 64, 128), "BK": (16, 32, 64)},
    rules={
        "more threads a block than the device allows": threads_fit(threads),
        "more shared memory a block than a binary may declare": _shared_fits,
        "more than 2^31 - 1 blocks": grid_fits,
    },
    reads={
        "more threads a block than the device allows": ("BM", "BN"),
        "more than 2^31 - 1 blocks": ("BM", "BN"),
    },
)
