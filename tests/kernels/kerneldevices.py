"""Devices by their limits, and the configs at the edges of each space, for the kernels' tests."""

from __future__ import annotations

from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.problem import Problem
from kernels.space import Config

TRANSPOSITIONS = ((False, False), (False, True), (True, False), (True, True))
DTYPES = ("float32", "float64")


def device(platform: str, limits: Limits) -> Device:
    return Device(
        id=f"{platform}:0",
        platform=platform,
        name="a device of the tests",
        architecture="sm_90" if platform == "cuda" else "",
        driver="",
        runtime="",
        compiler="",
        uuid="",
        memory_bytes=2**34,
        limits=limits,
    )


H200 = device(
    "cuda",
    Limits(
        threads=1024,
        shared_bytes=227 * 1024,
        warp=32,
        sms=132,
        bandwidth=4.8e12,
        peak=66.9e12,
        peak64=33.5e12,
        registers_per_sm=65536,
        registers_per_thread=255,
        shared_bytes_per_sm=233472,
        shared_bytes_reserved=1024,
        threads_per_sm=2048,
        blocks_per_sm=32,
    ),
)
PROCESSOR = device(
    "opencl",
    Limits(threads=4096, shared_bytes=2**20, warp=8, sms=2, bandwidth=2e10, peak=1.8e11, peak64=9e10),
)

# The smallest, the largest, square ones and rectangles every way, within 1,024 threads.
EDGES: dict[str, list[tuple[int, ...]]] = {
    "naive": [(1, 8), (1, 256), (32, 32), (8, 32)],
    "tiled": [
        (4, 4, 4),
        (4, 4, 64),
        (16, 16, 16),
        (32, 32, 32),
        (32, 32, 64),
        (16, 64, 4),
        (64, 16, 64),
        (4, 64, 64),
    ],
    # One warp and many, tall and wide, each count of stages; legal in both dtypes on an H200.
    "register_tiled": [
        (32, 32, 4, 4, 16, 8, 1, 1, 1),
        (256, 32, 8, 4, 16, 16, 2, 1, 8),
        (32, 256, 4, 8, 128, 16, 3, 1, 1),
        (64, 64, 4, 4, 64, 32, 4, 1, 8),
        (128, 128, 8, 4, 32, 16, 4, 1, 1),
        (64, 128, 8, 4, 32, 16, 1, 2, 8),
    ],
}


def config(kernel: str, values: tuple[int, ...]) -> Config:
    space = CATALOGUE[kernel].space
    return space.config(dict(zip(space.parameters, values, strict=True)))


def transposed(dtype: str, trans_a: bool, trans_b: bool, m: int, n: int, k: int) -> Problem:
    return Problem(m, n, k, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
