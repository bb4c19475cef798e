"""The Python targets of CUDA, without a GPU: they are imported beside their manifest, and encode its tensor maps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.exports.targets import NotExported, exported
from kernels.problem import Problem
from tests.exports.test_c import driver, stands_in, taken
from tests.support.exports import winners

__all__ = ["driver"]
pytestmark = pytest.mark.slow

PROGRAM = """
from tilewise_gemm import MANIFEST, OutsideClass, encoded, sizes_of
from tilewise_recipe import QueuedMap, product

found = product(MANIFEST, 256, 256, 4096)
maps = [each for launch in found.launches for each in launch.arguments if isinstance(each, QueuedMap)]
assert len(maps) == 3, maps
assert all(encoded(each, 1 << 20).nbytes == 128 for each in maps)
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


@pytest.mark.skipif(find_spec("numba") is None, reason="there is no Numba")
@pytest.mark.parametrize(
    "problem", [Problem(19, 21, 13), Problem(9, 10, 33, 2, "float64", trans_a=True, trans_b=True)], ids=str
)
def test_numba_multiplies_right_in_its_simulator(problem: Problem, tmp_path: Path) -> None:
    made = winners.winner("tiled", problem, compiled=stands_in)
    for name, data in exported(made, "numba").items():
        (tmp_path / name).write_bytes(data)
    ran = subprocess.run(
        [sys.executable, "check.py"],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["right"]


def test_numba_is_for_the_tiled_kernel() -> None:
    made = winners.winner("hopper", Problem(1024, 1024, 1024, dtype="float16"), compiled=stands_in)
    with pytest.raises(NotExported, match="numba is for tiled in float32 and float64, not for hopper"):
        exported(made, "numba")
