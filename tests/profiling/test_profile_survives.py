"""A profile that was taken in outlives the service, and one that is stopped leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from app.cli.spawn import started
from tests.support.started_services import settled
from tilewise import Client, Problem

pytestmark = pytest.mark.slow


def test_a_profile_that_waits_is_made_by_the_next_service_after_a_kill(tmp_path: Path) -> None:
    problem = Problem(96, 88, 80)
    with settled(tmp_path) as first, Client(first.url) as client:
        tune = client.tune("72x72x72", seconds=60)
        job = client.profile(problem)
        assert client.profile(problem).id == job.id
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    with started(tmp_path, devices="opencl") as second, Client(second.url) as client:
        assert client.ready(wait=120)
        client.cancel(tune.id)
        assert client.wait(job.id, timeout=120).state == "succeeded"
        (found,) = client.profiles(problem)
        assert found.id == job.id
        running = client.profile(Problem(1024, 1024, 1024))
        ended = client.cancel(running.id)
        assert (ended if ended.ended else client.wait(running.id, timeout=60)).state == "cancelled"
        assert not client.profiles(job_id=running.id)
        again = client.profile(problem, wait=True)
        assert again.state == "succeeded", "the device is not usable after a profile that was stopped"
