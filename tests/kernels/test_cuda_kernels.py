"""What NVRTC makes of the kernels for every architecture; no GPU is needed."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pytest

from app.errors import CompileFailed
from kernels import CATALOGUE
from kernels.device import Device
from kernels.launch import Build
from kernels.problem import Problem
from kernels.register_tiled.plan import register_limit
from kernels.space import Config
from tests.support.kernels.devices import DTYPES, EDGES, H200, TRANSPOSITIONS, config, home, homes, transposed
from tests.support.kernels.random_samples import seed
from tests.support.pairwise import crossed

cuda = pytest.importorskip("app.devices.cuda")

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
# All edges meet the oldest architecture that has a class, the one that the kernels are made for, and the newest, each
# in one class of up to four; of the others' a quarter do, since ptxas allots registers alike for neighbours. Of the
# defaults, each in another transposition, these meet all, and the others half.
FULL = ("sm_90", "sm_120")
SHARES = 4
# The first kernels are compiled for the oldest by default, register_tiled in one of its classes; the others' own tests
# compile these for sm_80 and sm_90.
FIRST = {"naive", "tiled"}
USUAL = {"sm_75"}
UNBOUND = "__launch_bounds__((x) * (y)) void"  # as portable.h and dtype.h have it
TRADED = 16  # bytes
SECONDS = 0.5  # of one core, for a variant in the median


def on(architecture: str) -> Device:
    return replace(H200, architecture=architecture)


def covered(name: str, architecture: str) -> list[tuple[str, str]]:
    """The classes that a kernel computes on an architecture."""
    kernel, device = CATALOGUE[name], on(architecture)
    ones = [(each, Problem(1, 1, 1, dtype=each[0], precision=each[1])) for each in kernel.classes]
    return [each for each, problem in ones if kernel.class_refusal(problem, device) is None]


CASES = [
    pytest.param(
        architecture,
        name,
        *kind,
        id=f"{architecture}-{name}-{'-'.join(kind)}",
        marks=[]
        if architecture in USUAL and (name in FIRST or (name, *kind) == ("register_tiled", "float64", "strict"))
        else [pytest.mark.slow],
    )
    for architecture in ARCHITECTURES
    for name, kernel in CATALOGUE.items()
    if "cuda" in kernel.platforms
    for kind in covered(name, architecture)
]


def is_full(architecture: str, name: str, kind: tuple[str, str]) -> bool:
    """Whether all is compiled for it: the newest, the usual, or the oldest on which the kernel computes the class."""
    return architecture in (*FULL, next(each for each in ARCHITECTURES if kind in covered(name, each)))


def defaults(name: str, likes: Sequence[Problem], device: Device) -> list[tuple[Config, Problem]]:
    """What a kernel chooses for problems that it is for, each stored as another of `likes` is."""
    kernel, shapes = CATALOGUE[name], [likes[0], *homes(name, likes[0], device)[-3:]]
    ones = [
        replace(shape, trans_a=like.trans_a, trans_b=like.trans_b)
        for shape, like in zip(shapes, cycle(likes), strict=False)
    ]
    return [(kernel.default(each, device), each) for each in ones if kernel.covers(each, device)]


def alike(dtype: str, precision: str, turn: int) -> Problem:
    return replace(transposed(dtype, *TRANSPOSITIONS[turn % 4], 1024, 1024, 1024), precision=precision)


def edges(architecture: str, name: str, kind: tuple[str, str]) -> Iterator[tuple[Config, Problem]]:
    """The configs at the edges that are compiled for a class here: others on the next architecture, and in the next."""
    at, classes, device = ARCHITECTURES.index(architecture), covered(name, architecture), on(architecture)
    for place, values in enumerate(EDGES.get(name, ())):
        tile = config(name, values)
        own = {each: home(name, tile, alike(*each, place + at), device) for each in classes}
        able = [each for each in classes if own[each] is not None]
        portion = min(SHARES, len(able)) if is_full(architecture, name, kind) else SHARES
        portion = (
            portion if sum(kind in covered(name, each) for each in ARCHITECTURES) > 1 else 1
        )  # there is no next one
        if kind in able and (able.index(kind) + place + at) % SHARES % portion == 0:
            problem = own[kind]
            assert problem is not None
            yield tile, problem


def drawn(chosen: list[tuple[Config, Problem]]) -> list[tuple[Config, Problem]]:
    """What one run compiles of a case: all of it, or TEST_EDGES drawn by the run's seed."""
    most = int(os.environ.get("TEST_EDGES", len(chosen)))
    print(f"TEST_SEED={seed()}")
    return random.Random(seed()).sample(chosen, min(most, len(chosen)))  # noqa: S311 - configs, not secrets


def needed_spills(cubin: Any, build: Build, architecture: str, folder: Path) -> int:
    """Bytes a thread spills: a few count only if it does where the kernel asks for no more than one block on an SM.

    Where nothing is said, ptxas may spill a word or two so that registers suffice for one block more.
    """
    alone = replace(build, text=build.text.replace(UNBOUND, UNBOUND.replace("(y))", "(y), 1)")))
    if not 0 < cubin.spills <= TRADED or alone.text == build.text:
        return int(cubin.spills)
    return int(cuda.compile_cubin(alone, architecture, folder).spills)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("architecture", "name", "dtype", "precision"), CASES)
def test_a_kernel_compiles_at_the_edges_of_its_space_and_spills_nothing(
    architecture: str, name: str, dtype: str, precision: str, tmp_path: Path
) -> None:
    kernel, device = CATALOGUE[name], on(architecture)
    at = ARCHITECTURES.index(architecture) + kernel.classes.index((dtype, precision))
    chosen = set(edges(architecture, name, (dtype, precision)))
    own = defaults(name, [alike(dtype, precision, at + place) for place in range(4)], device)
    chosen |= set(own if is_full(architecture, name, (dtype, precision)) else own[at % 2 :: 2] or own)
    assert chosen
    for tile, problem in drawn(sorted(chosen, key=str)):
        launch = kernel.launch(tile, problem, device)
        cubin = cuda.compile_cubin(launch.build, architecture, tmp_path)
        assert needed_spills(cubin, launch.build, architecture, tmp_path) == 0, (tile, problem.key)
        assert cubin.warnings == (), (tile, problem.key)
        assert cubin.registers * launch.threads * tile.get("MIN_BLOCKS", 1) <= 65536, (tile, problem.key)


@pytest.mark.timing
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_a_variant_is_compiled_in_half_a_second_in_the_median(architecture: str, tmp_path: Path) -> None:
    seconds, device = [], on(architecture)
    for name, kernel in CATALOGUE.items():
        for dtype, precision in covered(name, architecture):
            for tile, problem in defaults(name, [alike(dtype, precision, 0)], device)[-1:]:
                build, started = kernel.launch(tile, problem, device).build, process_time()
                cuda.compile_cubin(build, architecture, tmp_path)
                seconds.append((process_time() - started, f"{name} {dtype} {precision}"))
    print(*sorted(seconds), sep="\n")
    assert median(took for took, _ in seconds) < SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_whatever_the_rules_leave_compiles_and_spills_little(architecture: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)  # noqa: S311 - configs, not secrets
    kernel, device = CATALOGUE["register_tiled"], replace(H200, architecture=architecture)
    for dtype in DTYPES:
        problem = transposed(dtype, *rng.choice(TRANSPOSITIONS), 64, 64, 64)
        for chosen in rng.sample(kernel.space.legal(problem, device), 3):
            launch = kernel.launch(chosen, problem, device)
            cubin = cuda.compile_cubin(launch.build, architecture, tmp_path)
            assert cubin.registers is not None
            assert cubin.spills is not None
            assert cubin.spills <= 256, (chosen, problem.key)
            assert cubin.registers <= register_limit(chosen, device), (chosen, problem.key)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "name",
    [name if number % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(CATALOGUE)],
)
def test_cuda_refuses_a_text_with_a_parameter_missing(name: str, tmp_path: Path) -> None:
    kernel = CATALOGUE[name]
    dtype, precision = kernel.classes[0]
    problem = homes(name, Problem(1, 1, 1, dtype=dtype, precision=precision), H200)[0]
    build = kernel.launch(kernel.default(problem, H200), problem, H200).build
    for macro, _ in build.macros:
        without = replace(build, macros=tuple(pair for pair in build.macros if pair[0] != macro))
        with pytest.raises(CompileFailed, match=f"{macro}.* must be defined"):
            cuda.compile_cubin(without, "sm_90", tmp_path)


@pytest.mark.rotating
@pytest.mark.drawn(2)
@crossed(dtype=CATALOGUE["tiled"].dtypes, trans_a=(False, True), trans_b=(False, True))
def test_the_compilers_shared_memory_is_the_spaces(dtype: str, trans_a: bool, trans_b: bool, tmp_path: Path) -> None:
    problem = transposed(dtype, trans_a, trans_b, 64, 64, 64)
    edges = [config("tiled", values) for values in EDGES["tiled"][1:]]
    legal = [tile for tile in edges if CATALOGUE["tiled"].space.refusal(tile, problem, H200) is None]
    for tile in legal[::3]:
        launch = CATALOGUE["tiled"].launch(tile, problem, H200)
        # From sm_80 the section holds the system's share too.
        cubin = cuda.compile_cubin(launch.build, "sm_75", tmp_path)
        assert static_shared_bytes(cubin.path.read_bytes(), "matmul") == launch.shared_bytes


@pytest.mark.rotating
@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", [name for name, kernel in CATALOGUE.items() if "cuda" in kernel.platforms])
def test_a_launch_has_the_shared_memory_that_is_compiled(name: str, tmp_path: Path) -> None:
    print(f"TEST_SEED={seed()}")
    kernel, rng = CATALOGUE[name], random.Random(f"{seed()} {name}")  # noqa: S311 - configs, not secrets
    like = alike(*rng.choice(kernel.classes), rng.randrange(4))
    deep = replace(like, m=rng.randrange(20, 80), n=rng.randrange(20, 300), k=rng.randrange(1000, 2000))
    for problem in [*homes(name, like, H200)[:1], *([deep] if kernel.covers(deep, H200) else [])]:
        legal = kernel.space.legal(problem, H200)
        clustered = [one for one in legal if one.get("CLUSTER_K", 1) > 1]
        for some in (rng.sample(ones, min(len(ones), 60)) for ones in (legal, clustered)):
            launches = [kernel.launch(one, problem, H200) for one in some]
            for launch in (*launches[:1], *sorted(launches, key=lambda one: one.shared_bytes)[-1:]):
                cubin = cuda.compile_cubin(launch.build, "sm_90", tmp_path)
                declared = static_shared_bytes(cubin.path.read_bytes(), "matmul")
                own = max(0, declared - H200.limits.shared_bytes_reserved)  # the section holds the system's share too
                assert own + launch.dynamic_smem_bytes == launch.shared_bytes, (launch.config, problem.key)


def static_shared_bytes(elf: bytes, entry: str) -> int:
    """The size of the cubin's section for a function's shared memory (ELF64: "Section Header")."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(elf[at : at + size], "little")

    start, each, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    strings = number(start + names * each + 24, 8)
    for header in range(start, start + count * each, each):
        at = strings + number(header, 4)
        if elf[at : elf.index(b"\0", at)] == f".nv.shared.{entry}".encode():
            return number(header + 32, 8)
    return 0
