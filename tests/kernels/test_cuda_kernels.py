"""What NVRTC makes of the kernels for every architecture; no GPU is needed."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from kerneldevices import DTYPES, EDGES, H200, TRANSPOSITIONS, config, home, homes, transposed

from app.errors import CompileFailed
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.register_tiled import granted

cuda = pytest.importorskip("app.devices.cuda")

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
# The first kernels are compiled for the oldest by default; the others' own tests compile these for sm_80 and sm_90.
FIRST = {"naive", "tiled", "register_tiled"}
USUAL = {"sm_75"}
CASES = [
    pytest.param(
        architecture,
        name,
        dtype,
        id=f"{architecture}-{name}-{dtype}",
        marks=[] if name in FIRST and architecture in USUAL else [pytest.mark.slow],
    )
    for architecture in ARCHITECTURES
    for name, kernel in CATALOGUE.items()
    for dtype in kernel.dtypes
    if not kernel.architectures or architecture in kernel.architectures
]


@pytest.mark.parametrize(("architecture", "name", "dtype"), CASES)
def test_a_kernel_compiles_at_the_edges_of_its_space_and_spills_nothing(
    architecture: str, name: str, dtype: str, tmp_path: Path
) -> None:
    # Each edge meets another transposition on the next architecture; the defaults meet all of them in two.
    turn, kernel, device = ARCHITECTURES.index(architecture), CATALOGUE[name], replace(H200, architecture=architecture)
    likes = [transposed(dtype, *TRANSPOSITIONS[(place + turn) % 4], 1024, 1024, 1024) for place in range(4)]
    tiles = [config(name, values) for values in EDGES[name]]
    edges = [(tile, home(name, tile, likes[place % 4], device)) for place, tile in enumerate(tiles)]
    chosen = {(tile, problem) for tile, problem in edges if problem is not None}
    for like in likes[::2]:
        chosen |= {(kernel.default(each, device), each) for each in (like, *homes(name, like, device)[-1:])}
    covered = [(tile, problem) for tile, problem in chosen if kernel.covers(problem, device)]
    assert covered
    for tile, problem in covered:
        launch = kernel.launch(tile, problem, device)
        cubin = cuda.compile_cubin(launch.build, architecture, tmp_path)
        assert cubin.spills == 0, (tile, problem.key)
        assert cubin.registers * launch.threads * tile.get("HELD", 1) <= 65536, (tile, problem.key)


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
            assert cubin.registers <= granted(chosen, device), (chosen, problem.key)


@pytest.mark.parametrize("name", CATALOGUE)
def test_cuda_refuses_a_text_with_a_parameter_missing(name: str, tmp_path: Path) -> None:
    kernel = CATALOGUE[name]
    problem = homes(name, Problem(1, 1, 1, dtype=kernel.dtypes[0]), H200)[0]
    build = kernel.launch(kernel.default(problem, H200), problem, H200).build
    for macro, _ in build.macros:
        without = replace(build, macros=tuple(pair for pair in build.macros if pair[0] != macro))
        with pytest.raises(CompileFailed, match=f"{macro}.* must be defined"):
            cuda.compile_cubin(without, "sm_90", tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", TRANSPOSITIONS)
def test_the_compilers_shared_memory_is_the_spaces(dtype: str, turned: tuple[bool, bool], tmp_path: Path) -> None:
    problem = transposed(dtype, *turned, 64, 64, 64)
    for values in EDGES["tiled"][1::3]:
        launch = CATALOGUE["tiled"].launch(config("tiled", values), problem, H200)
        # From sm_80 the section holds the system's share too.
        cubin = cuda.compile_cubin(launch.build, "sm_75", tmp_path)
        assert static_shared_bytes(cubin.path.read_bytes(), "matmul") == launch.shared_bytes


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
