"""Exports are whole: every launch has its files, and each source compiles alone to the cubin that was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from app.exports.targets import exported
from kernels.problem import Problem
from tests.exports.test_c import stands_in
from tests.support.exports import winners

SEVERAL = {
    "split k": ("pipelined", Problem(256, 256, 4096), ["matmul", "split_k_reduce"]),
    "repack": ("hopper", Problem(1000, 1001, 1003, dtype="float16"), ["pack_k_major", "matmul"]),
    "emulated": ("tensor_core", Problem(512, 512, 2048, precision="emulated"), ["row_absmax", "split_fp16", "matmul"]),
}
BINARIES = ("c", "cpp", "rust", "cupy", "cuda-core")


@pytest.mark.parametrize("target", BINARIES)
@pytest.mark.parametrize("how", SEVERAL)
def test_a_product_of_several_launches_is_taken_whole(how: str, target: str) -> None:
    kernel, problem, entries = SEVERAL[how]
    files = exported(winners.winner(kernel, problem, compiled=stands_in), target)
    manifest = json.loads(files["manifest.json"])
    launched = [each["entry"] for each in manifest["launches"]]
    assert list(dict.fromkeys(launched)) == entries
    assert set(manifest["binaries"]) == set(entries)
    for entry, binary in manifest["binaries"].items():
        assert sha256(files[binary["cubin"]]).hexdigest() == binary["sha256"]
        assert files[binary["ptx"]].startswith(b".version ")
        assert f"{entry}(".encode() in files[binary["source"]]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", winners.SMALL)
def test_each_source_of_a_winner_compiles_alone_to_the_cubin_that_is_measured(kernel: str, tmp_path: Path) -> None:
    cuda = pytest.importorskip("app.devices.cuda")
    made = winners.winner(kernel, winners.SMALL[kernel], compiled=stands_in)
    files = exported(made, "cu")
    for binary in made.binaries:
        measured = cuda.compile_cubin(binary.build, "sm_90", tmp_path / "measured")
        alone = replace(binary.build, text=files[f"{binary.entry}.cu"].decode(), macros=())
        taken = cuda.compile_cubin(alone, "sm_90", tmp_path / "taken")
        assert taken.path.read_bytes() == measured.path.read_bytes(), binary.entry
        assert (taken.registers, taken.spills) == (measured.registers, measured.spills)
