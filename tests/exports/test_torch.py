"""The target torch: its operators pass PyTorch's own checks, over a driver without a GPU whose memory is the host's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from app.exports.targets import NotExported, exported
from benchmarks.exports import torch_compiled
from kernels.problem import Problem
from tests.exports.test_c import driver, stands_in, taken
from tests.support.exports import winners

__all__ = ["driver"]

CHECKED = """
import json, sys
import torch
import tilewise_torch
from tilewise_torch import OutsideClass, fast_matmul, matmul

a, b = torch.randn(48, 56, requires_grad=True), torch.randn(56, 40, requires_grad=True)
found = {}
for name, operator in (("custom_op", matmul), ("extension", fast_matmul() if sys.argv[1] == "both" else None)):
    if operator is None:
        continue
    c = operator(a, b)
    assert torch.allclose(c, a @ b, atol=1e-4), name
    compiled = torch.compile(lambda x, y: operator(x, y) + 1, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(a, b), a @ b + 1, atol=1e-4), name
    c.sum().backward()
    assert torch.allclose(a.grad, (torch.ones(48, 40) @ b.mT), atol=1e-4), name
    a.grad = b.grad = None
    for wrong in ((a, a), (a.double(), b.double()), (a[None], b)):
        try:
            operator(*(each.detach() for each in wrong))
        except ValueError as refusal:
            found.setdefault("refused", []).append(str(refusal))
        else:
            raise AssertionError(wrong)
    found[name] = torch.library.opcheck(operator._opoverload if name == "custom_op" else operator.default, (a, b))
print(json.dumps(found))
"""


def ran(folder: Path, driver: Path, *words: str) -> dict[str, Any]:
    """What a program of Python says in the folder of an export, which is built there, with a driver that multiplies."""
    taken("naive", folder, "torch")
    build = ["gcc", "-O1", "-shared", "-fPIC", "-o", "libtilewise_gemm.so", "tilewise_gemm.c", "-ldl"]
    subprocess.run(build, cwd=folder, check=True)
    own = {"LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_LOG": str(folder / "log"), "FAKE_CUDA_MULTIPLIES": "1"}
    own |= {"FAKE_CUDA_ARGUMENTS": f"matmul={','.join(['8'] * 6)}", "TORCH_EXTENSIONS_DIR": str(folder / "built")}
    own |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch: pip install torch")
@pytest.mark.skipif(find_spec("ninja") is None, reason="there is no ninja: pip install ninja")
def test_both_operators_are_right_in_a_graph_that_inductor_compiles(driver: Path, tmp_path: Path) -> None:
    told = ran(tmp_path, driver, torch_compiled.__file__)["compiled"]
    assert {name: (one["right"], one["same"]) for name, one in told.items()} == {
        "custom_op": (True, True),
        "extension": (True, True),
    }


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch: pip install torch")
@pytest.mark.parametrize("operators", ["both" if find_spec("ninja") else "one"])
def test_torchs_own_checks_hold(operators: str, driver: Path, tmp_path: Path) -> None:
    found, log = ran(tmp_path, driver, "-c", CHECKED, operators), tmp_path / "log"
    checks = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}
    for name in ("custom_op", "extension")[: 2 if operators == "both" else 1]:
        assert found[name] == dict.fromkeys(checks, "SUCCESS"), name
    assert "they cannot be multiplied" in found["refused"][0]
    launches = [line.split()[-3:] for line in log.read_text().splitlines() if line.startswith("launch")]
    assert launches[0] == ["48", "40", "56"]


def test_torch_is_not_for_what_has_to_be_waited_for() -> None:
    made = winners.winner("tensor_core", Problem(512, 512, 2048, precision="emulated"), compiled=stands_in)
    with pytest.raises(NotExported, match="torch is not for emulated arithmetic"):
        exported(made, "torch")
