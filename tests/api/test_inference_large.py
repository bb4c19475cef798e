"""Inferences beyond 2 GiB, where a 32-bit length ends, on a device that takes no time."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SIDE, COLUMNS = 28_672, 64  # A is 3.06 GiB
PIECE = SIDE * 4 * 512

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def null(tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.serving.nulldevice", "--stamps", "--until-eof"]
    sizes = {"TILEWISE_SLAB_BYTES": str(2**32), "TILEWISE_MAX_BODY_BYTES": str(2**32)}
    settings = {"TILEWISE_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), **sizes}
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **settings}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().rpartition("//")[2].strip()
        until(lambda: httpx.get(f"http://{address}/v2/health/ready").status_code == 200, 60, each=0.1)
        yield address
        process.terminate()


def test_three_gibibytes_of_operands_are_taken(null: str) -> None:
    shapes = {"A": (SIDE, SIDE), "B": (SIDE, COLUMNS)}
    inputs = [
        {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": 4 * shape[0] * shape[1]}}
        for name, shape in shapes.items()
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    first, last = b"\1" * 8, b"\2" * 8

    def body() -> Iterator[bytes]:
        yield text
        for at in range(0, SIDE, 512):
            piece = bytearray(PIECE)
            piece[:8] = first if at == 0 else piece[:8]
            piece[-8:] = last if at + 512 >= SIDE else piece[-8:]
            yield bytes(piece)
        yield bytes(4 * SIDE * COLUMNS)

    length = len(text) + 4 * SIDE * (SIDE + COLUMNS)
    assert length > 3 * 2**30
    connection = http.client.HTTPConnection(null, timeout=300)
    headers = {"Inference-Header-Content-Length": str(len(text)), "Content-Length": str(length)}
    connection.request("POST", "/v2/models/matmul/infer", body=body(), headers=headers)
    answer = connection.getresponse()
    told = answer.read(int(answer.headers["Inference-Header-Content-Length"]))
    assert answer.status == 200, told
    assert json.loads(told)["outputs"][0]["shape"] == [SIDE, COLUMNS]
    c = np.frombuffer(answer.read(), np.uint64)  # what the device leaves: A's first bytes, and its last
    assert c.nbytes == 4 * SIDE * COLUMNS
    assert (c[:-1] == np.frombuffer(first, np.uint64)).all()
    assert c[-1] == np.frombuffer(last, np.uint64)
    connection.close()
