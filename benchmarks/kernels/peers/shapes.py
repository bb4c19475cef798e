"""The shapes that peers.py measures: classes of problems, each with the ratio it must reach and what it should."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernels.problem import Problem

TUNED, DEFAULT, TILED, NAIVE = "tuned", "default", "tiled", "naive"
VENDOR, CANDIDATE, TRITON = "vendor", "best candidate", "Triton"
FLOAT64, FLOAT16, BFLOAT16, TF32, EMULATED = "float64", "float16", "bfloat16", "tf32", "emulated"
LEAST = 0.9  # of the rivals' speed: what every shape must reach


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """Problems that are hard for one reason.

    `bar` is the ratio of the faster of `rivals` to us that every problem must reach, `goal` what is aimed at in words.
    Rivals compute in the problem's own precision, but for emulated float32: there cuBLAS's is strict.
    """

    name: str
    bar: float
    goal: str
    problems: tuple[Problem, ...]
    rivals: tuple[str, ...] = (VENDOR, TRITON)


def squares(sizes: Iterable[int], dtype: str = "float32", precision: str = "strict") -> tuple[Problem, ...]:
    """Square problems."""
    return tuple(Problem(size, size, size, dtype=dtype, precision=precision) for size in sizes)


def cubes(*batches: tuple[int, int], dtype: str = "float32") -> tuple[Problem, ...]:
    """Batches of small cubes, as pairs of how many and how large."""
    return tuple(Problem(size, size, size, batch=count, dtype=dtype) for count, size in batches)


def problems(
    *sizes: tuple[int, int, int], dtype: str = "float32", precision: str = "strict", stored: str = "nn"
) -> tuple[Problem, ...]:
    """Problems of m, n and k; `stored` tells A's and B's transposition as BLAS does, such as nt."""
    return tuple(Problem(*size, 1, dtype, precision, *(letter == "t" for letter in stored)) for size in sizes)


SKINNY = (
    *((m, 4096, 4096) for m in (1, 2, 4, 8)),
    *((1, 8192, 8192), (2, 8192, 2048), (4, 2048, 8192), (8, 2048, 2048), (16, 8192, 8192), (16, 4096, 4096)),
    *((4096, 1, 4096), (8192, 2, 2048), (4096, 4, 4096), (2048, 8, 8192), (8192, 16, 8192), (4096, 16, 4096)),
)
RAGGED = ((1023, 1023, 1023), (2047, 2049, 2051), (777, 1333, 2111), (4097, 4095, 4099), (123, 4567, 8901))
DEEP = ((64, 64, 131072), (128, 128, 65536), (256, 256, 16384), (32, 1024, 32768))
CUBES = ((4096, 16), (1024, 32), (512, 64), (128, 128))
# For tensor cores: the layers of a large model, rows of a decoder's batch, what neither rows nor columns divide.
LAYERS = ((4096, 14336, 4096), (2048, 8192, 28672))
ROWS = (
    *((m, 4096, 4096) for m in (1, 8, 16, 32, 64)),
    *((1, 8192, 8192), (16, 8192, 8192), (64, 8192, 8192), (16, 8192, 4096), (32, 4096, 8192)),
)
TALL_DEEP = ((131072, 64, 64), (262144, 16, 32), (64, 64, 131072), (128, 128, 65536))
ODD = RAGGED[:4]
MLP = ((32, 3072, 768), (128, 4096, 1024), (512, 3072, 768), (256, 11008, 4096), (1024, 4096, 1024), (2048, 768, 3072))

CLASSES = (
    ShapeClass("small square", 1.0, "1.2", squares((64, 128, 192, 256, 384, 512))),
    ShapeClass("square", 1.0, "geomean 1.10", squares((1024, 1536, 2048, 3072, 4096, 6144, 8192))),
    ShapeClass("skinny", 1.2, "75 % of the floor", problems(*SKINNY)),
    ShapeClass("tall", 1.2, "75 % of the floor", problems((131072, 64, 64), (262144, 16, 32))),
    ShapeClass("tall, longer k", 1.0, "1.15", problems((65536, 128, 512))),
    ShapeClass("deep", 1.0, "1.5", problems(*DEEP)),
    ShapeClass("ragged", 1.0, "1.3", problems(*RAGGED)),
    ShapeClass("batched cubes", 1.0, "1.5", cubes(*CUBES)),
    ShapeClass("float64 square", LEAST, "1.0", squares((1024, 2048, 4096, 8192), FLOAT64), (VENDOR,)),
    ShapeClass(
        "float64 other",
        LEAST,
        "1.0",
        problems((256, 256, 256), (1023, 1023, 1023), (1, 4096, 4096), (64, 64, 131072), dtype=FLOAT64)
        + problems((131072, 64, 64), dtype=FLOAT64)
        + problems((2048, 2048, 2048), dtype=FLOAT64, stored="nt"),
        (VENDOR,),
    ),
    ShapeClass(
        "transposed",
        LEAST,
        "1.0",
        problems((1024, 1024, 1024), (64, 64, 131072), stored="tn")
        + problems((1024, 1024, 1024), (4096, 4096, 4096), (1, 4096, 4096), (16, 8192, 8192), stored="nt")
        + problems((1024, 1024, 1024), (1000, 1200, 800), stored="tt"),
    ),
    ShapeClass("mlp", LEAST, "1.0", problems(*MLP)),
    ShapeClass("bf16 large", 0.97, "1.03", squares((4096, 8192), BFLOAT16) + problems(*LAYERS, dtype=BFLOAT16)),
    ShapeClass("fp16 large", 0.97, "1.03", squares((4096, 8192), FLOAT16) + problems(*LAYERS, dtype=FLOAT16)),
    ShapeClass("bf16 square", 0.95, "1.05", squares((512, 1024, 2048), BFLOAT16)),
    ShapeClass("fp16 square", LEAST, "1.05", squares((512, 1024, 2048), FLOAT16)),
    ShapeClass("tf32 square", 0.95, "1.05", squares((2048, 4096, 8192), precision=TF32)),
    ShapeClass(
        "emulated square",
        1.5,
        "2.2, 110 TFLOP/s at 8192",
        squares((2048, 4096, 8192), precision=EMULATED),
        (VENDOR,),
    ),
    ShapeClass("bf16 skinny", 1.0, "1.3", problems(*ROWS, dtype=BFLOAT16)),
    ShapeClass("bf16 tall, deep", 1.0, "1.5", problems(*TALL_DEEP, dtype=BFLOAT16)),
    ShapeClass("bf16 ragged", 1.5, "3", problems(*ODD, dtype=BFLOAT16)),
    ShapeClass("fp16 ragged", 1.5, "3", problems(*ODD, dtype=FLOAT16)),
    ShapeClass("tf32 ragged", 1.5, "3", problems(*ODD, precision=TF32)),
    ShapeClass("bf16 cubes", 1.0, "1.3", cubes(*CUBES, dtype=BFLOAT16)),
)
# A shape or two of each kind for a processor.
SMALLER = (
    ShapeClass("small square", 1.0, "1.2", squares((32, 64))),
    ShapeClass("square", 1.0, "1.10", squares((128,))),
    ShapeClass("skinny", 1.2, "75 % of the floor", problems((1, 512, 512), (512, 4, 256))),
    ShapeClass("tall", 1.2, "75 % of the floor", problems((4096, 16, 16))),
    ShapeClass("deep", 1.0, "1.5", problems((16, 16, 4096))),
    ShapeClass("ragged", 1.0, "1.3", problems((97, 101, 103))),
    ShapeClass("batched cubes", 1.0, "1.5", cubes((64, 16))),
    ShapeClass("float64 square", LEAST, "1.0", squares((128,), FLOAT64), (VENDOR,)),
    ShapeClass("transposed", LEAST, "1.0", problems((96, 64, 80), stored="tt")),
    ShapeClass("bf16 square", 0.95, "1.05", squares((64,), BFLOAT16)),
    ShapeClass("fp16 ragged", 1.5, "3", problems((33, 45, 51), dtype=FLOAT16)),
    ShapeClass("tf32 ragged", 1.5, "3", problems((33, 45, 51), precision=TF32)),
    ShapeClass("emulated square", 1.5, "2.2", squares((96,), precision=EMULATED), (VENDOR,)),
)


def strictly(problem: Problem) -> Problem:
    """The problem that a rival is given, and held against: emulated float32 is compared with strict float32."""
    return replace(problem, precision="strict") if problem.precision == EMULATED else problem


def named(problem: Problem) -> str:
    """A problem as the tables call it: 4096x16x4096, 16x16x16 x 4096 for batches, 64x64x64 tn float64, 8x8x8 tf32."""
    stored = "".join("t" if transposed else "n" for transposed in (problem.trans_a, problem.trans_b))
    parts = [f"{problem.m}x{problem.n}x{problem.k}"]
    parts += [f"x {problem.batch}"] if problem.batch > 1 else []
    parts += [stored] if stored != "nn" else []
    parts += [problem.dtype] if problem.dtype != "float32" else []
    return " ".join([*parts, problem.precision] if problem.precision != "strict" else parts)
