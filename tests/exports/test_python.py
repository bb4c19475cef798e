"""The Python targets of CUDA, without a GPU: they are imported beside their manifest, and encode its tensor maps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from app.exports.interpreter import QueuedMap, product
from app.exports.targets import exported
from kernels.problem import Problem
from tests.exports.test_c import PROBLEMS, REFUSALS, SUPPORT, driver, stands_in, taken, taking, whole_driver
from tests.support.exports import winners

__all__ = ["driver", "whole_driver"]
pytestmark = pytest.mark.slow

HAS_NUMBA = find_spec("numba_cuda") is not None
HAS_CUDA_CORE = find_spec("cuda") is not None and None not in map(find_spec, ("cuda.core", "cuda.bindings"))

PROGRAM = """
from tilewise_gemm import MANIFEST, OutsideClass, by_value, sizes_of
from tilewise_recipe import QueuedMap, product

found = product(MANIFEST, 256, 256, 4096)
maps = [each for launch in found.launches for each in launch.arguments if isinstance(each, QueuedMap)]
assert len(maps) == 3, maps
assert all(by_value(each, 1 << 20).nbytes == 128 for each in maps)
assert sizes_of((4096, 256), (4096, 256)) == (256, 256, 4096, 1)
assert sizes_of((7, 4096, 256), (7, 4096, 256)) == (256, 256, 4096, 7)
for wrong in (((4096, 256), (4095, 256)), ((2, 4096, 256), (3, 4096, 256))):
    try:
        sizes_of(*wrong)
    except OutsideClass as refusal:
        assert "cannot be multiplied" in str(refusal)
    else:
        raise AssertionError(wrong)
"""


@pytest.mark.skipif(find_spec("cupy") is None, reason="there is no CuPy")
def test_cupy_file_encodes_the_tensor_maps_of_its_manifest(driver: Path, tmp_path: Path) -> None:
    taken("hopper", tmp_path, "cupy")
    log = tmp_path / "log"
    own = {"LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_LOG": str(log)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert log.read_text().splitlines()[:1] == ["encode 6 3 256 512 64 1 0 3 2 0"]


def recorded(kernel: str, manifest: dict[str, Any], addresses: dict[str, int]) -> list[list[Any]]:
    """The launches of a manifest, as a driver is told of them; None stands for a workspace's address."""
    problem = PROBLEMS[kernel]
    found = product(manifest, problem.m, problem.n, problem.k)
    return [
        [each.entry, each.grid, *each.block, each.shared_bytes, *(_told(one, addresses) for one in each.arguments)]
        for each in found.launches
    ]


def _told(argument: str | int | QueuedMap, addresses: dict[str, int]) -> str | int | None:
    if isinstance(argument, QueuedMap):
        return "map"
    return addresses.get(argument) if isinstance(argument, str) else argument


def without(told: list[list[Any]], expected: list[list[Any]]) -> list[list[Any]]:
    """What was told, with None where None is expected."""
    return [[b if b is None else a for a, b in zip(*pair, strict=True)] for pair in zip(told, expected, strict=True)]


DRIVEN = [
    pytest.param(target, marks=pytest.mark.skipif(not present, reason=f"there is no {target}"))
    for target, present in (("cuda-core", HAS_CUDA_CORE), ("numba", HAS_NUMBA))
]


@pytest.mark.parametrize(
    ("kernel", "refused"), [*((each, "NONE") for each in PROBLEMS), *(("naive", why) for why in REFUSALS)]
)
@pytest.mark.parametrize("target", DRIVEN)
def test_launches_are_what_the_manifest_says(
    target: str, kernel: str, refused: str, whole_driver: Path, tmp_path: Path
) -> None:
    """Whether a graph launches what comes again, or the driver makes none, or the stream takes none."""
    made = taken(kernel, tmp_path, target)
    manifest, problem = json.loads((tmp_path / "manifest.json").read_text()), made.problem
    log = tmp_path / "log"
    own = {"LD_LIBRARY_PATH": str(whole_driver), "FAKE_CUDA_LOG": str(log), "FAKE_CUDA_ARGUMENTS": taking(manifest)}
    program = CALLS[target].format(sizes=(problem.m, problem.n, problem.k, 1))
    ran = ran_in(tmp_path, ["-c", program], **own, **{refused: "1"})
    assert ran.returncode == 0, ran.stderr
    lines, addresses = log.read_text().splitlines(), json.loads(ran.stdout)
    expected = [launch for places in addresses for launch in recorded(kernel, manifest, places)]
    told = [[_number(word) for word in line.split()[1:]] for line in lines if line.startswith("launch")]
    assert without(told, expected) == expected
    graphs = 3 if refused in {"NONE", "FAKE_CUDA_CAPTURING"} else 0  # one for each product that comes again and again
    assert (lines.count("graph"), lines.count("destroy")) == (graphs, graphs)
    maps = sum("tensor_map" in one for each in manifest["launches"] for one in each["args"])
    assert len([line for line in lines if line.startswith("encode")]) == 3 * maps  # two matrices C and two streams
    large = {each["entry"]: each["shared_bytes"] for each in manifest["launches"] if each["shared_bytes"] > 48 * 1024}
    assert {line for line in lines if line.startswith("attribute")} == {
        f"attribute {e} 8 {n}" for e, n in large.items()
    }
    assert [line for line in lines if line.startswith("zero")] == [
        f"zero {manifest['zeroed_bytes']}" for _ in range(any(None in launch for launch in expected))
    ]


@pytest.mark.parametrize("policy", ["events", "graph"])
@pytest.mark.parametrize("target", DRIVEN)
def test_check_multiplies_and_times(target: str, policy: str, whole_driver: Path, tmp_path: Path) -> None:
    taken("naive", tmp_path, target)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["measured"] |= {"policy": policy, "sets": 3}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    own = {"LD_LIBRARY_PATH": str(whole_driver), "FAKE_CUDA_ARGUMENTS": taking(manifest)}
    wrong = ran_in(tmp_path, ["check.py"], **own)
    right = ran_in(tmp_path, ["check.py"], **own, FAKE_CUDA_MULTIPLIES="1")
    assert (wrong.returncode, right.returncode) == (1, 0), (wrong, right)
    told = json.loads(right.stdout)
    launches = 1 if policy == "events" else 1000  # of two microseconds in the two milliseconds of a graph
    assert told["right"]
    assert round(1e6 * told["median_ms"] * launches) == 2000


def _number(word: str) -> str | int:
    return int(word) if word.isdecimal() else word


CUDA_CORE = """
import json
from tilewise_gemm import Gemm, OutsideClass

gemm, sizes, places = Gemm(), {sizes}, [(1 << 20, 2 << 20, 3 << 20), (1 << 20, 2 << 20, 4 << 20)]
stream = gemm.device.create_stream()
for a, b, c in 20 * places:
    gemm.multiply(a, b, c, sizes)
for _ in range(20):
    gemm.multiply(*places[0], sizes, stream)
for wrong in (((1 << 20) + 4, 2 << 20, 3 << 20, sizes), (1 << 20, 2 << 20, 3 << 20, (0, 1, 1, 1))):
    try:
        gemm.multiply(*wrong)
    except OutsideClass:
        pass
    else:
        raise AssertionError(wrong)
print(json.dumps([dict(zip("abc", each)) for each in (*20 * places, *20 * places[:1])]))
"""
NUMBA = """
import json
import numpy as np
from numba import cuda
from tilewise_gemm import DTYPE, MANIFEST, Gemm, OutsideClass

gemm, (m, n, k, _) = Gemm(), {sizes}
a = cuda.device_array((k, m) if MANIFEST["problem"]["trans_a"] else (m, k), DTYPE)
b, outs = cuda.device_array((k, n), DTYPE), [cuda.device_array((m, n), DTYPE) for _ in range(2)]
stream = cuda.stream()
for c in 20 * outs:
    gemm.multiply(a, b, c)
for _ in range(20):
    gemm.multiply(a, b, outs[0], stream)
others = [cuda.device_array((m, n), np.int64), cuda.device_array((m + 1, n), DTYPE)]
for wrong in ((a, b[:, ::2], outs[0]), *((a, b, other) for other in others)):
    try:
        gemm.multiply(*wrong)
    except OutsideClass:
        pass
    else:
        raise AssertionError(wrong)
where = [each.__cuda_array_interface__["data"][0] for each in (a, b, *outs)]
print(json.dumps([dict(zip("abc", (*where[:2], where[2 + each]))) for each in (*20 * (0, 1), *20 * (0,))]))
"""
CALLS = {"cuda-core": CUDA_CORE, "numba": NUMBA}


def ran_in(folder: Path, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """What a program of Python in a folder says."""
    environment = os.environ | more
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kernel", PROBLEMS)
def test_cupy_launches_what_the_manifest_says(kernel: str, driver: Path, tmp_path: Path) -> None:
    made = taken(kernel, tmp_path, "cupy")
    manifest, problem, log = json.loads((tmp_path / "manifest.json").read_text()), made.problem, tmp_path / "launches"
    copyfile(SUPPORT / "cupy_recorder.py", tmp_path / "cupy.py")
    own = {"RECORDED_LAUNCHES": str(log), "LD_LIBRARY_PATH": str(driver)}
    program = CUPY.format(
        a=(problem.k, problem.m) if problem.trans_a else (problem.m, problem.k), b=(problem.k, problem.n)
    )
    ran = ran_in(tmp_path, ["-c", program], **own)
    assert ran.returncode == 0, ran.stderr
    addresses = dict(zip(("a", "b", "c"), json.loads(ran.stdout), strict=True))
    expected = recorded(kernel, manifest, addresses)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert without(told, expected) == expected


CUPY = """
import json

import cupy
from tilewise_gemm import DTYPE, Gemm, OutsideClass

gemm = Gemm()
a, b = cupy.empty({a}, DTYPE), cupy.empty({b}, DTYPE)
c = gemm.multiply(a, b)
print(json.dumps([each.data.ptr for each in (a, b, c)]))
try:
    gemm.multiply(a.reshape(-1)[1:].reshape(-1, 1), b)
except OutsideClass:
    pass
else:
    raise AssertionError
"""


def test_cupys_check_multiplies_and_times(tmp_path: Path) -> None:
    taken("naive", tmp_path, "cupy")
    copyfile(SUPPORT / "cupy_recorder.py", tmp_path / "cupy.py")
    own = {"RECORDED_LAUNCHES": str(tmp_path / "launches")}
    wrong = ran_in(tmp_path, ["check.py", "48", "40", "56"], **own)
    right = ran_in(tmp_path, ["check.py", "48", "40", "56"], **own, RECORDED_MULTIPLIES="1")
    assert (wrong.returncode, right.returncode) == (1, 0), (wrong, right)
    told = json.loads(right.stdout)
    assert (told["right"], told["median_ms"]) == (True, pytest.approx(1.0, rel=1))


@pytest.mark.skipif(find_spec("cupy") is None, reason="there is no CuPy")
def test_what_stands_in_for_cupy_has_its_names(tmp_path: Path) -> None:
    real = ran_in(tmp_path, ["-c", NAMES])
    copyfile(SUPPORT / "cupy_recorder.py", tmp_path / "cupy.py")
    ours = ran_in(tmp_path, ["-c", NAMES])
    assert (real.returncode, ours.returncode) == (0, 0), (real.stderr, ours.stderr)
    assert [Path(ran.stdout.strip()).parent == tmp_path for ran in (real, ours)] == [False, True]


NAMES = """
import cupy

print(cupy.__file__)
for names in (
    (cupy, "ndarray empty asarray RawModule uint8 uint32 cuda"),
    (cupy.ndarray, "get data"),
    (cupy.RawModule, "get_function"),
    (cupy.cuda, "Stream Event get_current_stream get_elapsed_time runtime"),
    (cupy.cuda.runtime, "deviceSynchronize"),
    (cupy.cuda.Stream, "begin_capture end_capture __enter__ __exit__"),
    (cupy.cuda.Event, "record synchronize"),
):
    assert all(hasattr(names[0], name) for name in names[1].split()), names
"""


@pytest.mark.skipif(not HAS_NUMBA, reason="there is no Numba: pip install numba-cuda")
@pytest.mark.parametrize(
    "problem", [Problem(19, 21, 13), Problem(9, 10, 33, 2, "float64", trans_a=True, trans_b=True)], ids=str
)
def test_numba_multiplies_right_in_its_simulator(problem: Problem, tmp_path: Path) -> None:
    made = winners.winner("tiled", problem, compiled=stands_in)
    for name, data in exported(made, "numba").items():
        (tmp_path / name).write_bytes(data)
    ran = subprocess.run(
        [sys.executable, "check.py", "--module", "tilewise_tiled"],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["right"]


def test_numba_has_a_kernel_in_python_for_tiled_alone() -> None:
    tiled, hopper = Problem(64, 64, 64), Problem(1024, 1024, 1024, dtype="float16")
    for kernel, problem in (("tiled", tiled), ("hopper", hopper)):
        made = exported(winners.winner(kernel, problem, compiled=stands_in), "numba")
        assert ("tilewise_tiled.py" in made) is (kernel == "tiled")
