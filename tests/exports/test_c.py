"""The target c: compiled by gcc and clang without a warning, and called against a driver that records launches."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from app.exports.interpreter import OutsideClass, QueuedLaunches, QueuedMap, product
from app.exports.manifest import manifest_of
from app.exports.targets import exported
from app.exports.winner import ExportBinary, Winner
from kernels.launch import Build
from kernels.problem import Problem
from tests.support.exports import winners

SUPPORT = Path(winners.__file__).parent
HEADERS = Path(__file__).parents[2] / "app/exports/templates/c"
WARNINGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
COMPILERS = [
    pytest.param(each, marks=pytest.mark.skipif(which(each) is None, reason=f"there is no {each}"))
    for each in ("gcc", "clang")
]
PROBLEMS = {
    "hopper": Problem(256, 256, 8192, dtype="float16", trans_a=True),
    "tensor_core": Problem(512, 512, 2048, precision="emulated"),
    "naive": Problem(64, 64, 64),
}
# Why no graph is launched: the driver makes none, or the stream takes none.
REFUSALS = ("FAKE_CUDA_NO_GRAPHS", "FAKE_CUDA_CAPTURING", "FAKE_CUDA_PRIORITY")
OUTSIDE = (4096, 4096, 64, 2**20)  # more blocks than a grid has, in every kernel's tiles


def stands_in(build: Build) -> ExportBinary:
    """A build with bytes that a real cubin and PTX begin with: nothing here runs on a GPU."""
    return ExportBinary(build, b"\x7fELF" + build.entry.encode(), ".version 8.8\n.target sm_90\n")


def taken(kernel: str, folder: Path, target: str = "c", problem: Problem | None = None) -> Winner:
    made = winners.winner(kernel, problem or PROBLEMS[kernel], compiled=stands_in)
    for name, data in exported(made, target).items():
        (folder / name).write_bytes(data)
    return made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that has no GPU."""
    folder = tmp_path_factory.mktemp("driver")
    made = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", made, SUPPORT / "fake_cuda.c"], check=True)
    return folder


@pytest.fixture(scope="module")
def whole_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that has no GPU, and whatever cuda.core and Numba ask of a driver."""
    folder = tmp_path_factory.mktemp("driver")
    build: list[Path | str] = ["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1"]
    subprocess.run([*build, SUPPORT / "fake_cuda_numba.c", "-ldl"], check=True)
    return folder


def called(program: Path, driver: Path, manifest: dict[str, Any], *sizes: int, **more: str) -> tuple[str, list[str]]:
    """What the program prints, and what the driver was asked for."""
    log = program.parent / "log"
    log.unlink(missing_ok=True)
    own = {"LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_LOG": str(log), "FAKE_CUDA_ARGUMENTS": taking(manifest)}
    ran = subprocess.run(
        [program, *map(str, sizes)], env=os.environ | own | more, capture_output=True, text=True, check=False
    )
    return ran.stdout, log.read_text().splitlines() if log.exists() else []


def taking(manifest: dict[str, Any]) -> str:
    """What each of the manifest's kernels takes, as the driver is told."""
    return ";".join(f"{each['entry']}={','.join(map(_bytes, each['args']))}" for each in manifest["launches"])


def _bytes(argument: dict[str, Any]) -> str:
    return "128" if "tensor_map" in argument else "8"


def assert_launched(log: list[str], expected: QueuedLaunches) -> None:
    """Hold what the driver was asked for to the manifest: a product in the GPU's memory, and one in the host's."""
    launched = [line.split()[1:] for line in log if line.startswith("launch")]
    assert len(launched) == 2 * len(expected.launches)
    for found, launch in zip(launched, 2 * expected.launches, strict=True):
        assert found[:5] == [launch.entry, str(launch.grid), *map(str, launch.block), str(launch.shared_bytes)]
        given = [
            (number, value)
            for number, value in zip(found[5:], launch.arguments, strict=True)
            if not isinstance(value, str)
        ]
        assert all(number == ("map" if isinstance(value, QueuedMap) else str(value)) for number, value in given)


@pytest.mark.drawn(3)
@pytest.mark.skipif(which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize("kernel", PROBLEMS)
@pytest.mark.parametrize(("turns", "refused"), [(2, "NONE"), (16, "NONE"), *((16, why) for why in REFUSALS)])
def test_products_that_come_again_are_launched_the_same(
    kernel: str, turns: int, refused: str, driver: Path, tmp_path: Path
) -> None:
    """One by one, and by graphs where there are as many and the driver and the stream take them."""
    problem = taken(kernel, tmp_path).problem
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    sources = [SUPPORT / "repeats.c", tmp_path / "tilewise_gemm.c"]
    subprocess.run(["gcc", *WARNINGS, f"-I{tmp_path}", "-o", tmp_path / "repeats", *sources, "-ldl"], check=True)
    said, log = called(tmp_path / "repeats", driver, manifest, problem.m, problem.n, problem.k, turns, **{refused: "1"})
    assert said == "failed 0\n"
    graphs = log.count("graph")
    assert 0 < graphs <= 8 if turns > 2 and refused not in REFUSALS else graphs == 0
    assert log.count("destroy") == graphs, "each handle's are gone with it"
    launches = [line.split() for line in log if line.startswith("launch")]
    turn = [(c, problem.k) for c in range(3, 12)] + [(3, problem.k // 2)]
    expected = [
        (each, {"a": 1 << 20, "b": 2 << 20, "c": c << 20})
        for c, k in 2 * turns * turn
        for each in product(manifest, problem.m, problem.n, k).launches
    ]
    assert len(launches) == len(expected)
    for told, (launch, places) in zip(launches, expected, strict=True):
        assert told[1:6] == [launch.entry, str(launch.grid), *map(str, launch.block), str(launch.shared_bytes)]
        for word, argument in zip(told[6:], launch.arguments, strict=True):
            at = places.get(argument, argument) if isinstance(argument, str) else argument
            assert word == ("map" if isinstance(at, QueuedMap) else word if at == "workspace" else str(at))
    # A place in the cache may be another product's in between; a launch without one that is kept encodes its maps.
    maps = sum(isinstance(one, QueuedMap) for launch, _ in expected for one in launch.arguments)
    assert len([line for line in log if line.startswith("encode")]) <= maps


@pytest.mark.skipif(which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize("graphs", [0, 1])
def test_check_times_launches_or_graphs_of_them(graphs: int, whole_driver: Path, tmp_path: Path) -> None:
    taken("naive", tmp_path)
    recipe = tmp_path / "tilewise_recipe.h"
    recipe.write_text(re.sub(r"(#define TW_GRAPHS) \d", rf"\1 {graphs}", recipe.read_text()))
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "check", tmp_path / "tilewise_check.c", "-ldl", "-lm"], check=True)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    said, log = called(tmp_path / "check", whole_driver, manifest, 64, 64, 64, FAKE_CUDA_MULTIPLIES="1")
    told = json.loads(said)
    assert told["right"]
    assert told["median_ms"] == pytest.approx(2e-6 if graphs else 2e-3, rel=0.01)
    launches = [line for line in log if line.startswith("launch")]
    # One whose elements are compared, 17 of which a graph makes the last; two to warm up, then 50 by events, or the
    # graph's thousand.
    assert len(launches) == 1 + 17 + 2 + (1001 if graphs else 50)


@pytest.mark.drawn(2)
@pytest.mark.skipif(which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize("kernel", winners.SMALL)
def test_each_kernels_winner_launches_its_manifest_and_refuses_in_one_sentence(
    kernel: str, driver: Path, tmp_path: Path
) -> None:
    problem = winners.SMALL[kernel]
    manifest = manifest_of(taken(kernel, tmp_path, problem=problem))
    own: list[Path | str] = [tmp_path / "tilewise_gemm.c", SUPPORT / "caller.c", "-ldl"]
    warnings = ["-std=c11", "-O0", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *warnings, f"-I{tmp_path}", "-o", tmp_path / "caller", *own], check=True)
    sizes = (problem.m, problem.n, problem.k, problem.batch)
    said, log = called(tmp_path / "caller", driver, manifest, *sizes)
    assert_launched(log, product(manifest, *sizes))
    assert "matmul 0 \nmisaligned 1 " in said
    with pytest.raises(OutsideClass) as refusal:
        product(manifest, *OUTSIDE)
    said, log = called(tmp_path / "caller", driver, manifest, *OUTSIDE)
    assert f"matmul 2 {refusal.value}\n" in said
    assert not [line for line in log if line.startswith("launch")]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("kernel", PROBLEMS)
def test_export_compiles_and_launches_what_its_manifest_says(
    kernel: str, compiler: str, driver: Path, tmp_path: Path
) -> None:
    made = taken(kernel, tmp_path)
    manifest, problem = manifest_of(made), made.problem
    own: list[Path | str] = [tmp_path / "tilewise_gemm.c", SUPPORT / "caller.c", "-ldl"]
    subprocess.run([compiler, *WARNINGS, f"-I{tmp_path}", "-o", tmp_path / "caller", *own], check=True)
    subprocess.run(
        [compiler, *WARNINGS, "-o", tmp_path / "check", tmp_path / "tilewise_check.c", "-ldl", "-lm"], check=True
    )
    said, log = called(tmp_path / "caller", driver, manifest, problem.m, problem.n, problem.k)
    expected = product(manifest, problem.m, problem.n, problem.k)
    assert_launched(log, expected)
    assert f"workspace {expected.workspace_bytes}\nmatmul 0 \nmisaligned 1 " in said
    assert "null 1 a pointer is null\nfinish 0\nhost 0\n" in said
    assert log.count(f"zero {expected.zeroed_bytes}") == bool(expected.workspace_bytes)
    assert [line for line in log if line.startswith("load")] == ["load cubin"] * len(expected.launches)
    large = {launch.entry: launch.shared_bytes for launch in expected.launches if launch.shared_bytes > 48 * 1024}
    assert {line for line in log if line.startswith("attribute")} == {f"attribute {e} 8 {n}" for e, n in large.items()}
    assert log[-1] == "release 0"


@pytest.mark.skipif(which("gcc") is None, reason="there is no gcc")
def test_export_refuses_what_it_is_not_for_and_takes_ptx_on_another_gpu(driver: Path, tmp_path: Path) -> None:
    made = taken("hopper", tmp_path)
    manifest, problem = manifest_of(made), made.problem
    own: list[Path | str] = [tmp_path / "tilewise_gemm.c", SUPPORT / "caller.c", "-ldl"]
    subprocess.run(["gcc", *WARNINGS, f"-I{tmp_path}", "-o", tmp_path / "caller", *own], check=True)
    said, log = called(tmp_path / "caller", driver, manifest, problem.m + 1, problem.n, problem.k)
    assert "workspace -1\nmatmul 2 m must be a multiple of 8 (else there would be" in said
    assert f"the product is {problem.m + 1} x {problem.n} x {problem.k} x 1" in said
    assert not [line for line in log if line.startswith("launch")]
    sizes = (problem.m, problem.n, problem.k)
    said, log = called(tmp_path / "caller", driver, manifest, *sizes, FAKE_CUDA_ARCHITECTURE="other")
    loads = [line for line in log if line.startswith("load")]
    assert loads == ["load cubin", "load ptx"] * len(manifest["launches"])
    assert "matmul 0" in said
    said, _ = called(tmp_path / "caller", tmp_path, manifest, *sizes)
    assert said == "open 3 there is no NVIDIA driver that has libcuda.so.1 (nvcuda.dll)\n" or which("nvidia-smi")


def test_numbers_of_a_recipe_have_64_bits_and_no_more(tmp_path: Path) -> None:
    """The multipliers that tile indices are divided by have 62."""
    made = tmp_path / "numbers"
    subprocess.run(["gcc", "-w", f"-I{HEADERS}", "-o", made, SUPPORT / "numbers.c"], check=True)
    texts = (str(2**62), str(2**63 - 1), str(2**63), "9" * 20, f"ceil({2**62}, 3)")
    said = subprocess.run([made, *texts], check=True, capture_output=True, text=True).stdout.split("\n")
    assert said[:5] == [f"1 {2**62}", f"1 {2**63 - 1}", "0 0", "0 0", f"1 {-(-(2**62) // 3)}"]
