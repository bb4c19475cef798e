"""The targets over the C ABI: compiled by their languages' compilers, and called against a driver without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from app.exports.interpreter import product
from app.exports.targets import NotExported, exported
from kernels.problem import Problem
from tests.exports.test_c import SUPPORT, called, driver, stands_in, taken
from tests.support.exports import winners

__all__ = ["driver"]
pytestmark = pytest.mark.slow

RUSTC = which("rustc") or which("rustc", path=str(Path.home() / ".cargo/bin"))
MINGW = {bits: which(f"{machine}-w64-mingw32-gcc") for bits, machine in ((64, "x86_64"), (32, "i686"))}
NVCC, RUNTIME = which("nvcc"), find_nvidia_header_directory("cudart")
WINE = which("wine64") or which("wine")


def launched(log: list[str]) -> list[list[str]]:
    """Entry, grid, block and shared bytes of each launch."""
    return [line.split()[1:6] for line in log if line.startswith("launch")]


def expected(manifest: dict[str, Any], sizes: tuple[int, ...] = (64, 64, 64)) -> list[list[str]]:
    """The same of a manifest, for sizes."""
    found = product(manifest, *sizes).launches
    return [[each.entry, *map(str, (each.grid, *each.block, each.shared_bytes))] for each in found]


def missing(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(which(program) is None, reason=f"there is no {program}")


@pytest.mark.parametrize("compiler", [pytest.param(each, marks=missing(each)) for each in ("g++", "clang++")])
def test_cpp_compiles_and_throws_the_sentence(compiler: str, driver: Path, tmp_path: Path) -> None:
    taken("naive", tmp_path, "cpp")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    subprocess.run(["gcc", "-O1", "-c", "tilewise_gemm.c"], cwd=tmp_path, check=True)
    warnings = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *warnings, "-o", "example", "example.cpp", "tilewise_gemm.o", "-ldl"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said, log = called(tmp_path / "example", driver, manifest, 64, 64, 64)
    assert said == "workspace 0\ndone\n"
    assert launched(log) == expected(manifest)
    said, log = called(tmp_path / "example", tmp_path, manifest, 64, 64, 64)
    assert "done" not in said or which("nvidia-smi")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """C++'s example compiled, which is the same of every winner."""
    folder = tmp_path_factory.mktemp("example")
    taken("naive", folder, "cpp")
    subprocess.run(["g++", "-std=c++17", "-O0", "-c", "example.cpp"], cwd=folder, check=True)
    return folder / "example.o"


@pytest.mark.skipif(which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("kernel", winners.SMALL)
def test_each_kernels_winner_is_called_from_cpp_and_rust(
    kernel: str, example: Path, driver: Path, tmp_path: Path
) -> None:
    problem = winners.SMALL[kernel]
    taken(kernel, tmp_path, "rust", problem)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    sizes = (problem.m, problem.n, problem.k, problem.batch)
    subprocess.run(["gcc", "-O0", "-c", "tilewise_gemm.c"], cwd=tmp_path, check=True)
    subprocess.run(["g++", "-o", "example", example, "tilewise_gemm.o", "-ldl"], cwd=tmp_path, check=True)
    said, log = called(tmp_path / "example", driver, manifest, *sizes)
    assert "done\n" in said
    assert launched(log) == expected(manifest, sizes)
    if RUSTC is None:
        return
    link = ["-C", "opt-level=1", "-C", "link-arg=tilewise_gemm.o", "-C", "link-arg=-ldl"]
    subprocess.run([RUSTC, "-A", "dead_code", *link, "check.rs"], cwd=tmp_path, check=True)
    said, log = called(tmp_path / "check", driver, manifest, *sizes)
    assert '"right": false' in said
    assert launched(log) == expected(manifest, sizes)


@pytest.mark.skipif(MINGW[64] is None, reason="there is no mingw")
@pytest.mark.parametrize("kernel", winners.SMALL)
def test_each_kernels_winner_is_a_dll_or_refuses_to_be(kernel: str, tmp_path: Path) -> None:
    problem = winners.SMALL[kernel]
    if problem.dtype not in {"float32", "float64"}:
        with pytest.raises(NotExported, match="dll is for float32 and float64"):
            taken(kernel, tmp_path, "dll", problem)
        return
    taken(kernel, tmp_path, "dll", problem)
    command = [str(MINGW[64]), "-shared", "-static-libgcc", "-O0", "-Wall", "-Wextra", "-Werror", "-o", "tilewise.dll"]
    subprocess.run([*command, "tilewise_vba.c", "tilewise.def"], cwd=tmp_path, check=True)
    assert (tmp_path / "tilewise.dll").stat().st_size


@pytest.mark.skipif(NVCC is None and RUNTIME is None, reason="there is no nvcc, and no header of CUDA's runtime")
def test_cpps_example_for_cudas_runtime_compiles(tmp_path: Path) -> None:
    taken("naive", tmp_path, "cpp")
    subprocess.run(["gcc", "-O1", "-c", "tilewise_gemm.c"], cwd=tmp_path, check=True)
    if NVCC is None:
        command = ["g++", "-x", "c++", "-fsyntax-only", "-std=c++17", "-Wall", "-Werror", f"-I{RUNTIME}"]
        subprocess.run([*command, "example_runtime.cu"], cwd=tmp_path, check=True)
        return
    command = [NVCC, "-std=c++17", "-Xcompiler", "-Wall,-Wextra,-Werror", "-o", "example"]
    subprocess.run([*command, "example_runtime.cu", "tilewise_gemm.o", "-ldl"], cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 or which("nvidia-smi")
    assert "CUDA driver" in ran.stderr or which("nvidia-smi"), ran  # there is none, or it is older than this runtime


@pytest.mark.skipif(RUSTC is None, reason="there is no rustc")
def test_rust_compiles_and_tells_a_wrong_product(driver: Path, tmp_path: Path) -> None:
    taken("naive", tmp_path, "rust")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    subprocess.run(["gcc", "-O1", "-c", "tilewise_gemm.c"], cwd=tmp_path, check=True)
    command = [str(RUSTC), "-D", "warnings", "-A", "dead_code", "-C", "link-arg=tilewise_gemm.o", "-C", "link-arg=-ldl"]
    subprocess.run([*command, "check.rs"], cwd=tmp_path, check=True)
    said, log = called(tmp_path / "check", driver, manifest, 64, 64, 64)
    assert '"right": false' in said  # nothing is computed: C is whatever its memory was
    assert launched(log) == expected(manifest)


@pytest.mark.skipif(RUSTC is None, reason="there is no rustc")
def test_checks_tell_a_right_product_from_a_wrong_one(driver: Path, tmp_path: Path) -> None:
    taken("naive", tmp_path, "rust")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    subprocess.run(["gcc", "-O1", "-c", "tilewise_gemm.c"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-O1", "-o", "check_c", "tilewise_check.c", "-ldl", "-lm"], cwd=tmp_path, check=True)
    link = ["-C", "link-arg=tilewise_gemm.o", "-C", "link-arg=-ldl"]
    subprocess.run([str(RUSTC), *link, "-o", "check_rust", "check.rs"], cwd=tmp_path, check=True)
    for program in ("check_c", "check_rust"):
        wrong, _ = called(tmp_path / program, driver, manifest, 48, 40, 56)
        right, _ = called(tmp_path / program, driver, manifest, 48, 40, 56, FAKE_CUDA_MULTIPLIES="1")
        assert ('"right": false' in wrong, '"right": true' in right) == (True, True), (program, wrong, right)


def test_dll_is_for_what_vba_has(tmp_path: Path) -> None:
    made = winners.winner("wmma", Problem(256, 256, 256, dtype="float16"), compiled=stands_in)
    with pytest.raises(NotExported, match="dll is for float32 and float64 without transpositions"):
        exported(made, "dll")
    taken("naive", tmp_path, "dll")
    module = (tmp_path / "tilewise.bas").read_text()
    named = set(re.findall(r"Declare (?:PtrSafe )?(?:Function|Sub) (\w+) Lib", module))
    assert named == set((tmp_path / "tilewise.def").read_text().split()[3:])
    declared = re.findall(r"(\w+)\(([^)]*)\)\n\{", (tmp_path / "tilewise_vba.c").read_text())
    counts = {name: 0 if given == "void" else given.count(",") + 1 for name, given in declared if name in named}
    for name, given in re.findall(r"(\w+) Lib \"tilewise.dll\" \(([^)]*)\)", module):
        assert (given.count(",") + 1 if given else 0) == counts[name], name


@pytest.mark.parametrize(
    "bits", [pytest.param(b, marks=pytest.mark.skipif(not c, reason="there is no mingw")) for b, c in MINGW.items()]
)
def test_dll_builds_and_exports_plain_names(bits: int, tmp_path: Path) -> None:
    taken("naive", tmp_path, "dll")
    compiler, warnings = str(MINGW[bits]), ["-O1", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, "-shared", "-static-libgcc", *warnings, "-o", "tilewise.dll", "tilewise_vba.c", "tilewise.def"]
    subprocess.run(command, cwd=tmp_path, check=True)
    dump = [compiler.replace("gcc", "objdump"), "-p", "tilewise.dll"]
    shown = subprocess.run(dump, cwd=tmp_path, capture_output=True, check=True).stdout.decode()
    assert all(re.search(rf"\b{name}$", shown, re.MULTILINE) for name in ("matmul_cuda", "matmul_cuda_error"))


def has_wine(bits: int) -> bool:
    """Whether programs of so many bits can be compiled, and run."""
    folder = {64: "x86_64-linux-gnu", 32: "i386-linux-gnu"}[bits]
    return None not in (WINE, MINGW[bits]) and Path("/usr/lib", folder, "wine").exists()


@pytest.mark.parametrize(
    "bits",
    [
        pytest.param(bits, marks=pytest.mark.skipif(not has_wine(bits), reason=f"there is no wine{bits}, or no mingw"))
        for bits in MINGW
    ],
)
def test_dll_is_called_under_wine_against_a_driver_without_a_gpu(bits: int, tmp_path: Path) -> None:
    taken("naive", tmp_path, "dll")
    compiler = str(MINGW[bits])
    library = [compiler, "-shared", "-static-libgcc", "-O1", "-o", "tilewise.dll", "tilewise_vba.c", "tilewise.def"]
    subprocess.run(library, cwd=tmp_path, check=True)
    fake = [compiler, "-shared", "-static-libgcc", "-w", "-o", "nvcuda.dll", str(SUPPORT / "fake_cuda.c")]
    fake += ["-Wl,--kill-at"]  # plain names, as the driver's own are
    subprocess.run(fake, cwd=tmp_path, check=True)
    program = [compiler, "-static-libgcc", "-Wall", "-Werror", "-o", "caller.exe", str(SUPPORT / "caller_windows.c")]
    subprocess.run(program, cwd=tmp_path, check=True)
    taking = {"FAKE_CUDA_LOG": "log", "FAKE_CUDA_ARGUMENTS": f"matmul={','.join(['8'] * 6)}"}
    own = {"WINEPREFIX": str(tmp_path / "wine"), "WINEARCH": f"win{bits}", "WINEDEBUG": "-all"}
    own |= {"WINEDLLOVERRIDES": "nvcuda=n", **taking}
    ran = subprocess.run(
        [str(WINE), "caller.exe"], cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False
    )
    refused = "matmul_cuda 2 n must be from 1 to 2147483647, and is 0"
    assert ran.stdout.splitlines()[:2] == ["matmul_cuda 0", refused], ran
    launches = [line.split() for line in (tmp_path / "log").read_text().splitlines() if line.startswith("launch")]
    assert [line[9:12] for line in launches] == [["24", "40", "16"]]  # m and n are exchanged
