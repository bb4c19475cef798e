"""The Python targets of CUDA, without a GPU: they are imported beside their manifest, and encode its tensor maps."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.exports.test_c import driver, taken

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
