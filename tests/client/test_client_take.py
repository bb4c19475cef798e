"""Winners taken away from a service: the zip's files, their headers, and a check that runs on the CPU device."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import httpx
import pytest
from cuda.pathfinder import find_nvidia_binary_utility

from tests.support.client.shared_service import Served
from tilewise import Client, ClientError, Problem

# Where an ELF file says where its last table begins, and the bytes and number of its entries.
PROGRAM_HEADERS = (slice(32, 40), slice(54, 56), slice(56, 58))
ROOT = Path(__file__).resolve().parents[2]


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_opencl_export_multiplies_right_and_is_the_same_each_time(service: Served, tmp_path: Path) -> None:
    with Client(service.url) as client:
        data = client.take("96x80x64", "opencl")
        assert client.take("96x80x64", "opencl") == data
        answer = client.best_config("96x80x64")
    found = files_of(data)
    assert {"manifest.json", "README.md", "LICENSE", "check.py", "matmul.cl"} <= set(found)
    assert len(found["README.md"].splitlines()) <= 12
    assert found["LICENSE"] == (ROOT / "LICENSE").read_bytes()
    manifest = json.loads(found["manifest.json"])
    assert manifest["kernel"] == answer.kernel
    assert manifest["config"] == answer.config
    for name, content in found.items():
        (tmp_path / name).write_bytes(content)
    command = [
        sys.executable,
        "-m",
        "tests.support.exports.run_on_pocl",
        str(tmp_path),
        os.environ["TILEWISE_CACHE_DIR"],
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["right"]
    assert told["max_scaled"] <= told["bound"]
    assert told["median_ms"] > 0


def test_export_says_what_it_has_and_refuses_with_a_sentence(service: Served) -> None:
    with httpx.Client(base_url=service.url) as http:
        query = {"m": 64, "n": 64, "k": 64}
        found = http.get("/take/json", params=query)
        assert found.status_code == 200
        assert found.headers["content-type"] == "application/zip"
        assert found.headers["content-disposition"].startswith('attachment; filename="tilewise-')
        assert set(files_of(found.content)) == {"manifest.json", "README.md", "LICENSE"}
        for target, more, code, words in (
            ("c", {}, "unsupported", "take it as opencl, json"),
            ("cobol", {}, "invalid", "a target is one of opencl"),
            ("json", {"config": "BM=1"}, "invalid", "give kernel, too"),
            ("json", {"kernel": "nobody"}, "unknown_kernel", "there is no kernel nobody"),
            ("json", {"kernel": "tiled", "config": "BM=3,BN=4,BK=4"}, "invalid", "BM is one of"),
            ("json", {"kernel": "hopper"}, "unsupported", "hopper does not compute"),
            ("json", {"arch": "sm_12"}, "invalid", "an architecture is one of sm_80"),
        ):
            refused = http.get(f"/take/{target}", params={**query, **more})
            assert (refused.status_code // 100, refused.json()["code"]) == (4, code)
            assert words in refused.json()["error"]


@pytest.mark.rotating
@pytest.mark.skipif(find_spec("cupy") is None, reason="NVRTC is loaded by CuPy")
def test_export_for_a_gpu_that_is_not_here_has_cubin_and_old_ptx(service: Served) -> None:
    with Client(service.url) as client:
        problem = Problem(256, 256, 256, dtype="float16")
        given = {"BM": 32, "BN": 32, "BK": 32}
        found = files_of(client.take(problem, "c", arch="sm_90", kernel="wmma", config=given))
        with pytest.raises(ClientError, match="refused for"):
            client.take(problem, "c", arch="sm_80", kernel="wmma", config={"BM": 128, "BN": 128, "BK": 64})
    manifest = json.loads(found["manifest.json"])
    binary = manifest["binaries"]["matmul"]
    at, each, count = (int.from_bytes(found["matmul.cubin"][place], "little") for place in PROGRAM_HEADERS)
    assert at + each * count == len(found["matmul.cubin"])  # nothing is cut off
    assert binary["sha256"] == sha256(found["matmul.cubin"]).hexdigest()
    assert found["matmul.cubin"].startswith(b"\x7fELF")
    assert found["matmul.cu"].startswith(b"#define BM 32\n")
    assert f".version {binary['ptx_version']}\n".encode() in found["matmul.ptx"]
    assert b".target sm_90\n" in found["matmul.ptx"]
    assert (manifest["config"], manifest["measured"]["match"]) == (given, "given")


@pytest.mark.rotating
@pytest.mark.skipif(find_spec("cupy") is None, reason="NVRTC is loaded by CuPy")
def test_sass_is_what_nvdisasm_says_or_a_sentence_says_that_there_is_none(service: Served) -> None:
    problem, given = Problem(256, 256, 256, dtype="float16"), {"BM": 32, "BN": 32, "BK": 32}
    with Client(service.url) as client:
        if which("nvdisasm") or find_nvidia_binary_utility("nvdisasm"):
            found = files_of(client.take(problem, "sass", arch="sm_90", kernel="wmma", config=given))
            assert b"HMMA" in found["matmul.sass"]
        else:
            with pytest.raises(ClientError, match=r"sass needs nvdisasm, which is not here: CUDA's toolkit has it"):
                client.take(problem, "sass", arch="sm_90", kernel="wmma", config=given)
