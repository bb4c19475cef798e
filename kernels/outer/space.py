"""The space of outer: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.device import Device
from kernels.outer.plan import blocks, threads
from kernels.problem import Problem
from kernels.rules import MAX_GRID, VECTOR_BYTES, holds_all_of_k, threads_fit
from kernels.space import Config, Space

DEPTHS: Final = (1, 2, 3, 4)
# Bytes of a vector: of fewer a warp's stores are less than two lines.
LEAST_BYTES: Final = 8
# Elements of B that a thread reads at most, all of them unrolled.
READS: Final = 64


def _vector(config: Config, problem: Problem, _: Device) -> bool:
    return LEAST_BYTES <= config["VECTOR"] * problem.itemsize <= VECTOR_BYTES


def _rows_hold_vectors(config: Config, problem: Problem, _: Device) -> bool:
    return config["VECTOR"] <= problem.n or config["VECTOR"] * problem.itemsize == LEAST_BYTES


def _reads(config: Config, _: Problem, __: Device) -> bool:
    return config["PACKS"] == 1 or config["BK"] * config["VECTOR"] * config["PACKS"] <= READS


def _fills(config: Config, problem: Problem, device: Device) -> bool:
    """Threads have several vectors where there are enough for every SM."""
    return config["PACKS"] == 1 or blocks(config, problem) >= device.limits.sms


def _grid_fits(config: Config, problem: Problem, _: Device) -> bool:
    return blocks(config, problem) <= MAX_GRID


SPACE: Final = Space(
    parameters={
        "BK": DEPTHS,
        "VECTOR": (1, 2, 4, 8),
        "PACKS": (1, 2, 4),
        "THREADS": (64, 128, 256, 512),
    },
    rules={
        "a BK other than the least that holds all of k": holds_all_of_k(DEPTHS),
        "vectors of less than 8 bytes, or more than 16": _vector,
        "vectors longer than C's rows, where there are shorter ones": _rows_hold_vectors,
        "more reads of a thread than are unrolled": _reads,
        "several vectors of a thread where SMs have no block": _fills,
        "more threads a block than the device allows": threads_fit(threads),
        "more than 2^31 - 1 blocks": _grid_fits,
    },
    reads={
        "a BK other than the least that holds all of k": ("BK",),
        "vectors of less than 8 bytes, or more than 16": ("VECTOR",),
        "vectors longer than C's rows, where there are shorter ones": ("VECTOR",),
        "more reads of a thread than are unrolled": ("BK", "VECTOR", "PACKS"),
        "several vectors of a thread where SMs have no block": ("VECTOR", "PACKS", "THREADS"),
        "more threads a block than the device allows": ("THREADS",),
        "more than 2^31 - 1 blocks": ("VECTOR", "PACKS", "THREADS"),
    },
)
