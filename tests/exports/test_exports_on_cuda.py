"""Exports on a GPU: each target builds, passes its check, and multiplies right. Run: pytest -m cuda tests/exports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

pytestmark = pytest.mark.cuda

# A kernel with tensor maps and split k, one of small products, one whose operands are not multiples of anything.
PRODUCTS = {
    "maps": ("1024x1024x4096", "--dtype", "half"),
    "small": ("64x64x64",),
    "odd": ("1000x1001x1003", "--trans-b"),
}
_LIBRARY = "cc -O2 -shared -fPIC -o libtilewise_gemm.so tilewise_gemm.c -ldl"
CHECKS = {
    "c": ("cc -O2 -o check tilewise_check.c -ldl -lm", "./check"),
    "cupy": (f"{sys.executable} check.py",),
    "torch": (
        "cc -O2 -shared -fPIC -o libtilewise_gemm.so tilewise_gemm.c -ldl",
        f"{sys.executable} tilewise_torch.py",
    ),
    "cuda-core": (f"{sys.executable} check.py",),
    "numba": (f"{sys.executable} check.py",),
}
NEEDED = {"cupy": "cupy", "torch": "torch", "cuda-core": "cuda.core", "numba": "numba.cuda"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("target", CHECKS)
def test_an_export_passes_its_check_on_this_gpu(target: str, product: str, data: Path, tmp_path: Path) -> None:
    if (needed := NEEDED.get(target)) and (find_spec(needed.partition(".")[0]) is None or find_spec(needed) is None):
        pytest.skip(f"there is no {needed}")
    if target in {"c", "torch"} and which("cc") is None:
        pytest.skip("there is no compiler of C")
    own = os.environ | {"TILEWISE_DEVICES": "cuda", "TILEWISE_DATA_DIR": str(data)}
    folder = tmp_path / "taken"
    take = [sys.executable, "-m", "app.cli", "take", *PRODUCTS[product], "--as", target, "-o", str(folder)]
    ran = subprocess.run(take, env=own, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for command in CHECKS[target]:
        ran = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert json.loads(ran.stdout.splitlines()[-1])["right"]
