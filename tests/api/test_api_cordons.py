"""Cordons over HTTP, by the client and by the command line: a device refuses work, says why, and serves again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.started_services import settled
from tilewise import Client, ClientError


@pytest.mark.slow
def test_a_cordon_is_told_wherever_the_device_is_asked_for_and_ends(tmp_path: Path) -> None:
    with settled(tmp_path) as running, Client(running.url) as client, httpx.Client(base_url=running.url) as http:
        made = client.cordon("opencl:0", "a fan is broken")
        assert (made.cordoned, made.reason, made.by) == (True, "a fan is broken", "operator")
        assert made.since is not None
        again = http.post("/devices/opencl:0/cordon", json={"reason": "another"}).json()
        assert again["reason"] == "a fan is broken"
        with pytest.raises(ClientError, match="a fan is broken") as refused:
            client.matmul(np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32))
        assert (refused.value.status, refused.value.code) == (503, "device_cordoned")
        assert http.post("/tune", json={"shapes": [{"m": 8, "n": 8, "k": 8}]}).json()["code"] == "device_cordoned"
        ready = http.get("/health/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
        assert http.get("/health/live").status_code == 200
        state = 'tilewise_device_state{device="opencl:0",state="cordoned"} 1'
        assert state in http.get("/metrics").text
        words = [sys.executable, "-m", "app.cli", "uncordon", "opencl:0", "--url", running.url, "--json"]
        told = subprocess.run(words, capture_output=True, text=True, check=True)
        assert json.loads(told.stdout)["cordoned"] is False
        assert client.ready(wait=10)
        assert np.array_equal(client.matmul(np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32)), np.eye(8))


def test_cordons_of_unknown_devices_and_without_a_reason_are_refused(client: httpx.Client) -> None:
    assert client.post("/devices/cuda:7/cordon", json={"reason": "none"}).json()["code"] == "unknown_device"
    assert client.post("/devices/cuda:7/uncordon").json()["code"] == "unknown_device"
    for reason in ("", "x" * 201, 7):
        assert client.post("/devices/opencl:0/cordon", json={"reason": reason}).status_code == 422
    assert client.post("/devices/opencl:0/uncordon").json()["cordoned"] is False
