"""Devices by their limits, and the configs at the edges of each space, for the kernels' tests."""

from __future__ import annotations

from dataclasses import replace

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
    # One warp and many, one team and four, tall and wide, each count of stages; some legal before sm_80 only.
    "register_tiled": [
        (32, 32, 4, 4, 16, 1, 0, 8, 3, 1, 1, 1),
        (64, 32, 4, 4, 16, 1, 0, 16, 1, 1, 1, 1),
        (32, 32, 4, 4, 16, 4, 0, 64, 4, 1, 1, 1),
        (256, 32, 8, 4, 32, 1, 0, 16, 2, 1, 1, 1),
        (32, 256, 4, 8, 32, 1, 0, 16, 3, 1, 1, 1),
        (64, 64, 8, 8, 32, 4, 0, 32, 3, 1, 1, 1),
        (128, 128, 8, 4, 32, 1, 0, 16, 4, 1, 1, 1),
        (64, 128, 8, 4, 32, 1, 0, 32, 3, 2, 1, 1),
    ],
    # One team and four, copies of an element and of four, operands copied before, C through shared memory, tiles
    # that stay K-major.
    "pipelined": [
        (32, 32, 0, 1, 1, 1, 4, 4, 16, 4, 0, 0, 4, 16, 0, 64, 4, 1),
        (128, 256, 0, 1, 1, 1, 8, 16, 128, 1, 0, 0, 4, 16, 0, 16, 4, 1),
        (128, 256, 132, 1, 1, 1, 8, 16, 128, 1, 0, 0, 4, 16, 0, 16, 4, 1),
        (64, 64, 0, 1, 1, 1, 8, 8, 32, 1, 0, 0, 4, 4, 1, 16, 4, 1),
        (128, 64, 0, 1, 1, 1, 8, 8, 32, 1, 1, 0, 16, 16, 1, 32, 4, 1),
        (128, 128, 132, 1, 1, 1, 8, 8, 64, 1, 0, 0, 4, 4, 1, 16, 4, 1),
        (48, 32, 0, 1, 1, 1, 12, 4, 32, 4, 0, 0, 4, 16, 0, 32, 4, 1),
        (192, 192, 0, 1, 1, 1, 12, 12, 96, 1, 0, 0, 4, 16, 0, 8, 4, 1),
        (64, 64, 0, 1, 1, 1, 8, 8, 64, 4, 0, 1, 16, 16, 0, 32, 4, 1),
        (32, 32, 0, 1, 1, 1, 4, 4, 16, 4, 0, 1, 16, 16, 0, 32, 4, 1),
    ],
    # Two warps and eight, each count of lanes, elements stored one at a time and four.
    "rank_k": [
        (32, 32, 32, 4, 4, 8, 4, 1),
        (32, 256, 8, 8, 4, 32, 1, 1),
        (64, 128, 32, 16, 4, 16, 4, 1),
        (128, 64, 8, 8, 8, 8, 1, 1),
        (32, 128, 32, 4, 4, 16, 4, 2),
    ],
    # Each side long, one row and eight, one warp along k and many, single elements and vectors, clusters and none.
    "gemv": [
        (1, 1, 1, 1, 1024, 1, 4, 1),
        (1, 4, 64, 4, 4, 4, 2, 2),
        (0, 128, 8, 1, 2, 4, 1, 1),
        (0, 16, 2, 1, 32, 1, 8, 8),
        (1, 1, 256, 1, 1, 1, 1, 1),
    ],
    # A vector of a thread and several.
    "outer": [(1, 4, 1, 64), (4, 2, 1, 128), (3, 4, 4, 256), (2, 2, 2, 512)],
    # Several products a block and one, a product in tiles, one stage and four.
    "batched": [
        (16, 16, 4, 4, 16, 8, 1, 1),
        (64, 64, 8, 4, 32, 1, 2, 1),
        (16, 32, 4, 4, 16, 1, 4, 1),
    ],
    # Each side kept, whole and in pieces, one stage and four.
    "tall": [
        (0, 64, 64, 4, 4, 1, 4, 64, 64, 1),
        (0, 128, 64, 8, 4, 1, 4, 64, 32, 2),
        (1, 32, 128, 4, 4, 2, 4, 64, 16, 4),
    ],
    # Short sides of one, four and 16, upright and lying, with slices of k and without.
    "skinny": [
        (1, 128, 1, 4, 8, 1024, 2, 1, 8),
        (128, 4, 4, 4, 8, 256, 2, 1, 1),
        (16, 64, 16, 4, 8, 256, 4, 1, 2),
    ],
    # One warp and sixteen, each way round.
    "wmma": [(16, 16, 16), (64, 64, 64), (128, 32, 32), (16, 64, 64)],
    # Each depth of the instruction, operands read ahead and not, slices of k, k tiles shared by all blocks.
    "double_tensor": [
        (32, 32, 16, 16, 16, 4, 1, 3, 4, 0, 1, 1, 1),
        (64, 64, 32, 32, 16, 8, 1, 5, 1, 0, 1, 1, 1),
        (256, 64, 64, 32, 16, 4, 1, 4, 1, 0, 1, 1, 3),
        (64, 64, 32, 32, 16, 16, 0, 3, 1, 0, 1, 1, 1),
        (64, 128, 32, 32, 16, 8, 1, 5, 1, 132, 1, 1, 1),
    ],
    # Each depth of the instruction, operands read ahead and not, one box a k tile and two, clusters, persistent blocks,
    # slices of k.
    "double_hopper": [
        (32, 32, 16, 16, 32, 16, 1, 4, 1, 2, 1, 0, 1),
        (64, 128, 32, 32, 16, 16, 1, 6, 1, 1, 8, 132, 1),
        (128, 128, 64, 32, 16, 8, 0, 5, 1, 1, 1, 0, 1),
        (128, 64, 32, 32, 32, 8, 0, 2, 2, 1, 8, 132, 1),
        (64, 64, 32, 32, 16, 16, 0, 4, 1, 2, 1, 0, 1),
        (32, 32, 16, 16, 16, 16, 1, 5, 1, 2, 1, 0, 4),
    ],
    # One warp and eight, one team and four, lines of 32 bytes and of 256, four blocks on an SM, slices of k, copies of
    # both operands and of either, both or either put in pairs as they are read, and copied by fewer than 16 bytes.
    "tensor_core": [
        (16, 16, 16, 16, 16, 1, 1, 0, 1, 4, 0, 0, 16, 16, 1, 1),
        (256, 128, 64, 64, 32, 1, 1, 1, 1, 4, 0, 0, 16, 16, 1, 1),
        (32, 32, 32, 32, 64, 4, 1, 0, 1, 4, 0, 0, 16, 16, 1, 1),
        (64, 64, 32, 32, 32, 1, 1, 1, 4, 3, 0, 0, 16, 16, 1, 1),
        (64, 64, 32, 32, 128, 2, 1, 0, 1, 2, 0, 0, 16, 16, 1, 1),
        (128, 64, 32, 32, 32, 1, 1, 1, 1, 3, 3, 0, 16, 16, 8, 1),
        (64, 64, 32, 32, 64, 1, 1, 1, 1, 3, 0, 0, 16, 16, 1, 4),
        (64, 64, 32, 32, 64, 1, 1, 1, 1, 3, 2, 0, 16, 16, 1, 1),
        (64, 64, 32, 32, 64, 1, 1, 1, 1, 3, 1, 0, 16, 16, 1, 1),
        (64, 64, 32, 32, 64, 1, 1, 1, 1, 3, 0, 3, 16, 16, 1, 1),
        (32, 32, 16, 32, 128, 4, 1, 0, 1, 4, 0, 2, 16, 16, 1, 6),
        (64, 128, 64, 32, 32, 1, 1, 1, 1, 4, 0, 1, 16, 16, 1, 1),
        (64, 64, 32, 32, 64, 1, 1, 1, 1, 3, 0, 0, 4, 8, 1, 1),
        (128, 64, 32, 32, 32, 1, 1, 0, 2, 3, 0, 1, 16, 4, 8, 1),
        (96, 96, 48, 48, 32, 1, 1, 1, 1, 3, 0, 0, 16, 16, 1, 1),
        (192, 64, 48, 64, 32, 1, 1, 0, 1, 4, 0, 0, 16, 16, 8, 1),
        (96, 192, 48, 48, 32, 1, 1, 1, 1, 3, 0, 3, 16, 16, 1, 1),
        (48, 192, 48, 48, 32, 1, 1, 0, 3, 4, 0, 0, 16, 16, 8, 1),
    ],
    # Of each size of element, and of halves: one consumer to three, either way round, alone and in pairs, up to four
    # blocks on an SM, whole rows and ragged ones, operands packed and realigned.
    "hopper": [
        (64, 1, 0, 1, 0, 0, 16, 64, 1, 4, 1, 1, 1, 0, 3, 1, 0),
        (64, 1, 0, 0, 0, 0, 128, 256, 2, 1, 1, 1, 1, 1, 3, 1, 0),
        (64, 1, 0, 1, 0, 0, 256, 128, 2, 1, 2, 1, 1, 0, 4, 16, 132),
        (64, 0, 0, 1, 3, 0, 208, 192, 3, 1, 2, 1, 2, 0, 3, 8, 132),
        (32, 1, 0, 1, 0, 0, 256, 128, 2, 1, 2, 1, 8, 0, 4, 1, 132),
        (32, 1, 0, 0, 0, 0, 64, 8, 1, 4, 1, 1, 1, 0, 3, 1, 0),
        (32, 1, 0, 0, 2, 0, 128, 128, 2, 1, 1, 1, 1, 0, 5, 8, 132),
        (32, 0, 0, 0, 3, 0, 192, 96, 3, 1, 1, 1, 1, 0, 4, 8, 132),
        (64, 1, 256, 1, 0, 0, 128, 128, 2, 1, 2, 1, 1, 0, 3, 16, 132),
        (64, 1, 64, 0, 0, 0, 64, 8, 1, 4, 1, 1, 1, 0, 2, 1, 0),
        (64, 0, 64, 1, 0, 0, 64, 192, 3, 1, 2, 1, 1, 0, 2, 8, 132),
        (64, 1, 0, 0, 0, 0, 128, 256, 2, 1, 1, 2, 1, 1, 4, 1, 0),
        (64, 1, 0, 1, 0, 0, 128, 64, 1, 1, 1, 4, 1, 1, 6, 1, 0),
        (64, 0, 0, 1, 0, 3, 16, 64, 1, 1, 1, 1, 8, 1, 5, 1, 0),
        (64, 0, 0, 0, 0, 3, 64, 64, 1, 1, 1, 2, 1, 1, 8, 1, 0),
        (32, 1, 0, 0, 0, 2, 64, 64, 1, 1, 1, 1, 1, 1, 10, 1, 0),
        (32, 0, 0, 1, 0, 3, 32, 64, 1, 1, 1, 1, 2, 1, 10, 1, 0),
    ],
    # One band and many, either depth, one warp and eight; C alone and all matrices in aligned words; slices in passes;
    # blocks of a cluster.
    "direct_tensor": [
        (16, 8, 16, 2, 1, 1, 1, 0),
        (16, 16, 16, 4, 8, 1, 1, 0),
        (32, 32, 32, 8, 4, 1, 1, 0),
        (64, 64, 32, 8, 8, 1, 1, 0),
        (64, 16, 32, 2, 2, 1, 1, 0),
        (32, 32, 32, 8, 4, 1, 1, 4),
        (32, 64, 48, 8, 2, 1, 1, 7),
        (16, 32, 32, 8, 8, 8, 1, 0),
        (32, 16, 64, 4, 4, 4, 1, 7),
        (16, 8, 64, 2, 4, 4, 8, 0),
        (32, 16, 64, 4, 4, 4, 2, 7),
    ],
    # One tile a block and several, groups of their rows, stages, slices of a block's warps and of a cluster's blocks.
    "direct_double": [
        (16, 16, 32, 1, 1, 1, 1, 1),
        (32, 32, 16, 1, 4, 1, 1, 2),
        (16, 32, 8, 3, 8, 8, 1, 1),
        (16, 16, 16, 1, 16, 4, 1, 4),
        (16, 16, 40, 1, 4, 4, 8, 1),
        (32, 16, 32, 1, 8, 4, 2, 2),
    ],
}
# What the kernels are for, as m, n, k, batch: each config of a test is legal for one of its kernel's, here or there.
HOMES: dict[str, list[tuple[int, int, int, int]]] = {
    "register_tiled": [(64, 64, 64, 1), (2048, 2048, 2048, 1)],
    "pipelined": [(64, 64, 64, 1), (2048, 2048, 2048, 1), (2047, 2047, 2047, 1)],
    "rank_k": [(4096, 4096, 32, 1), (999, 1001, 7, 1)],
    "batched": [(16, 16, 16, 4096), (64, 64, 64, 512)],
    "tall": [(131072, 64, 64, 1), (64, 131072, 64, 1)],
    "skinny": [(1, 4096, 4096, 1), (4096, 4, 4096, 1), (16, 4096, 4096, 1)],
    "gemv": [(1, 4096, 4096, 1), (4096, 1, 4096, 1), (4, 4096, 4096, 1), (4096, 2, 4096, 1)],
    "outer": [(999, 1001, 1, 1), (999, 1001, 2, 1), (999, 1001, 3, 1), (999, 1001, 4, 1)],
    "double_tensor": [(1024, 1024, 1024, 1)],
    "double_hopper": [(64, 64, 64, 1), (1024, 1024, 1024, 1), (2048, 2048, 2048, 1)],
    "tensor_core": [
        (1024, 1024, 1024, 1),
        (16, 16, 512, 512),
        (2048, 2048, 2047, 1),
        (2047, 2047, 2047, 1),
        (64, 4096, 4096, 1),
        (4096, 4096, 4096, 1),
    ],
    "direct_tensor": [
        (16, 16, 16, 4096),
        (32, 32, 32, 1024),
        (262144, 16, 32, 1),
        (131072, 64, 31, 1),
        (4096, 4, 9, 1),
        (999, 1001, 27, 1),
        (96, 96, 512, 1),
        (99, 101, 447, 1),
    ],
    "direct_double": [(64, 64, 32, 1), (199, 131, 65, 2), (96, 96, 512, 1), (99, 101, 447, 1), (48, 64, 1280, 1)],
    "hopper": [(1024, 1024, 1024, 1), (2047, 2047, 2047, 1), (64, 4096, 4096, 1), (4096, 4096, 4096, 1)],
}


def config(kernel: str, values: tuple[int, ...]) -> Config:
    space = CATALOGUE[kernel].space
    return space.config(dict(zip(space.parameters, values, strict=True)))


def transposed(dtype: str, trans_a: bool, trans_b: bool, m: int, n: int, k: int) -> Problem:
    return Problem(m, n, k, dtype=dtype, trans_a=trans_a, trans_b=trans_b)


def homes(kernel: str, like: Problem, device: Device) -> list[Problem]:
    """Problems that the kernel is for, stored as `like` is; none where it is not for such or for the device."""
    shapes = HOMES.get(kernel, [(64, 64, 64, 1)])
    found = [replace(like, m=m, n=n, k=k, batch=batch) for m, n, k, batch in shapes]
    return [problem for problem in found if CATALOGUE[kernel].covers(problem, device)]


def home(kernel: str, tile: Config, like: Problem, device: Device) -> Problem | None:
    """The first problem that the kernel is for where a config is legal."""
    space = CATALOGUE[kernel].space
    return next((each for each in homes(kernel, like, device) if space.refusal(tile, each, device) is None), None)
