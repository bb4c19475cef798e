"""Configs, launches, devices and shapes for pipelined's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels.launch import Build, Launch, dtype_macros
from kernels.pipelined import PIPELINED
from kernels.pipelined.space import SPACE
from kernels.problem import Problem
from kernels.space import Config
from tests.support.kernels.devices import H200

CUBE = Problem(1024, 1024, 1024)
A100 = replace(
    H200,
    architecture="sm_80",
    limits=replace(H200.limits, sms=108, shared_bytes=163 * 1024, shared_bytes_per_sm=164 * 1024),
)
DEVICES = {"sm_80": A100, "sm_90": H200}
WIDE = {"CP_SIZE_A": 16, "CP_SIZE_B": 16}
NARROW = {"CP_SIZE_A": 4, "CP_SIZE_B": 4}
SMALL = {"BM": 32, "BN": 32, "TM": 4, "TN": 4, "WN": 16, "SLICE_K": 1, "PACK_MN": 0, "BK": 16, "STAGES": 3} | WIDE
LARGE = {"BM": 128, "BN": 256, "TM": 8, "TN": 16, "WN": 128, "SLICE_K": 1, "PACK_MN": 0, "BK": 16, "STAGES": 4} | WIDE

LINES = SMALL | {"BM": 64, "BN": 64, "TM": 8, "TN": 8, "WN": 64, "SLICE_K": 4, "BK": 32, "STAGES": 4, "K_MAJOR": 1}

# Fewer SMs than any device of the list has: tiles enough for all of them are quickly interpreted.
FEW_SMS = 3


def streamed(sms: int = FEW_SMS, start: Mapping[str, int] = SMALL, /, **values: int) -> Config:
    """A config whose blocks share out all phases, as a device of so many SMs would have it."""
    return Config(
        tuple((name, sms if name == "STREAM_K_SMS" else value) for name, value in tile(start, **values).items())
    )


def tile(start: Mapping[str, int] = SMALL, /, **values: int) -> Config:
    plain = {"MIN_BLOCKS": 1, "STREAM_K_SMS": 0, "CLUSTER_K": 1, "STAGE_C": 0, "K_MAJOR": 0, "SPLIT_K": 1, "GROUP_M": 1}
    return SPACE.config(plain | dict(start) | values)


def planned(chosen: Config, problem: Problem) -> Launch:
    """A launch of a config that the rules of speed may refuse: what the kernel has to do right in any case."""
    macros = [(name, str(value)) for name, value in chosen.items() if name not in PIPELINED.arguments]
    build = Build(PIPELINED.name, PIPELINED.text, "matmul", (*macros, *dtype_macros(problem)), dynamic_smem=True)
    return PIPELINED.for_problem(Launch(PIPELINED.name, chosen, problem, build, 0, (0, 0), 0), problem)


# What is asked of every kernel alike, and told apart by its own tests.
BARS = [
    *((size, size, size) for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192)),
    *((64, 64, 131072), (128, 128, 65536), (256, 256, 16384), (32, 1024, 32768)),
    *((1023, 1023, 1023), (2047, 2049, 2051), (777, 1333, 2111), (4097, 4095, 4099), (123, 4567, 8901)),
    *((131072, 64, 64), (262144, 16, 32), (65536, 128, 512), (1, 4096, 4096), (4096, 8, 4096), (1, 1, 1)),
]
