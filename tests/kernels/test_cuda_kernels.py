"""What NVRTC makes of the kernels for every architecture; no GPU is needed."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from kerneldevices import DTYPES, EDGES, H200, TRANSPOSITIONS, config, transposed

from app.errors import CompileFailed
from kernels import CATALOGUE
from kernels.problem import Problem
from kernels.register_tiled import granted

cuda = pytest.importorskip("app.devices.cuda")

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
CASES = [
    pytest.param(architecture, name, dtype, id=f"{architecture}-{name}-{dtype}")
    for architecture in ARCHITECTURES
    for name in CATALOGUE
    for dtype in DTYPES
]


@pytest.mark.parametrize(("architecture", "name", "dtype"), CASES)
def test_a_kernel_compiles_at_the_edges_of_its_space_and_spills_nothing(
    architecture: str, name: str, dtype: str, tmp_path: Path
) -> None:
    # Each edge meets another transposition on the next architecture; the default meets all of them in two.
    turn, kernel, device = ARCHITECTURES.index(architecture), CATALOGUE[name], replace(H200, architecture=architecture)
    chosen = {
        (edge, TRANSPOSITIONS[(place + turn) % 4])
        for place, values in enumerate(EDGES[name])
        for edge in [config(name, values)]
        if kernel.space.refusal(edge, Problem(64, 64, 64, dtype=dtype), device) is None
    }
    default = kernel.default(Problem(1024, 1024, 1024, dtype=dtype), device)
    for tile, turned in chosen | {(default, TRANSPOSITIONS[turn % 4]), (default, TRANSPOSITIONS[(turn + 2) % 4])}:
        launch = kernel.launch(tile, transposed(dtype, *turned, 64, 64, 64), device)
        cubin = cuda.compile_cubin(launch.build, architecture, tmp_path)
        assert cubin.spills == 0, (tile, turned)
        assert cubin.registers * launch.threads * tile.get("HELD", 1) <= 65536, (tile, turned)


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
    build = CATALOGUE[name].launch(config(name, EDGES[name][0]), Problem(8, 8, 8), H200).build
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
