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
    "cuda-core": (f"{sys.executable} check_cuda_core.py",),
}
NEEDED = {"cupy": "cupy", "torch": "torch", "cuda-core": "cuda.core"}
CUDA_CORE = """
import json

import cupy
import numpy as np
from tilewise_gemm import DTYPE, MANIFEST, Gemm

problem, gemm = MANIFEST["problem"], Gemm()
m, n, k = (problem[name] for name in "mnk")
generator = np.random.default_rng(1)
a = generator.standard_normal((k, m) if problem["trans_a"] else (m, k)).astype(DTYPE)
b = generator.standard_normal((n, k) if problem["trans_b"] else (k, n)).astype(DTYPE)
left, right, out = cupy.asarray(a), cupy.asarray(b), cupy.empty((m, n), DTYPE)
cupy.cuda.runtime.deviceSynchronize()
for _ in range(2):
    gemm.multiply(left.data.ptr, right.data.ptr, out.data.ptr, (m, n, k, 1))
gemm.device.sync()
wide = [each.astype(np.float64) for each in (a.T if problem["trans_a"] else a, b.T if problem["trans_b"] else b)]
error = float(np.max(np.abs(out.get() - wide[0] @ wide[1]) / (np.abs(wide[0]) @ np.abs(wide[1]))))
bound = MANIFEST["error_bound"]["per_k"] * k + MANIFEST["error_bound"]["rounding"]
print(json.dumps({"max_scaled": error, "bound": bound, "right": error <= bound}))
"""


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
    (folder / "check_cuda_core.py").write_text(CUDA_CORE)
    for command in CHECKS[target]:
        ran = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert json.loads(ran.stdout.splitlines()[-1])["right"]
