"""The command `tilewise serve` on a cluster: what it says, what it serves, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.cluster.local_cluster import local_cluster

pytest.importorskip("ray")


def serve(address: str, data: Path) -> subprocess.Popen[str]:
    told = {"TILEWISE_RAY": address, "TILEWISE_DEVICES": "opencl", "TILEWISE_DATA_DIR": str(data)}
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0"]
    return subprocess.Popen(
        command, env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    with serve("127.0.0.1:1", tmp_path) as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode
    assert "there is no Ray cluster at TILEWISE_RAY=127.0.0.1:1" in told


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess [0-9]+ is still running:ResourceWarning")  # Ray's own
@pytest.mark.filterwarnings("ignore:unclosed file <_io.*:ResourceWarning")
def test_a_service_of_a_cluster_tells_of_its_devices_and_ends_by_sigterm(tmp_path: Path) -> None:
    with local_cluster() as cluster, serve(cluster.address, tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split()[-1]
        with urlopen(f"{url}/devices") as reply:  # noqa: S310 - our own
            assert [device["id"] for device in json.load(reply)["devices"]] == ["head:opencl:0"]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode in {0, -signal.SIGTERM}, log
        assert "Traceback" not in log
        assert "Ray authenticates nobody" in log
