"""Profiles on a GPU: by Nsight Compute where it is installed and allowed, else by the driver and the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.spawn import started
from app.devices.profiler.ncu import find_ncu
from tilewise import Client, Problem

pytestmark = pytest.mark.cuda


def test_naive_tiled_winner_and_vendor_are_profiled_on_the_gpu(tmp_path: Path) -> None:
    problem = Problem(1024, 1024, 1024)
    with started(tmp_path, devices="cuda") as running, Client(running.url) as client:
        assert client.ready(wait=300)
        job = client.profile(problem, wait=True)
        assert job.state == "succeeded", job
        (found,) = client.profiles(problem, job_id=job.id)
    roles = {one.role: one for one in found.kernels}
    assert set(roles) == {"naive", "tiled", "winner", "vendor"}
    for role in ("naive", "tiled", "winner"):
        figures = {figure.name: figure for figure in roles[role].figures}
        assert figures["registers"].value, role
        assert figures["occupancy_percent"].value, role
        print(role, roles[role].kernel, {name: (each.value, each.source) for name, each in figures.items()})
        if figures["l1_hit_percent"].source == "ncu":
            assert 0 <= (figures["l1_hit_percent"].value or 0) <= 100
        else:
            assert figures["l1_hit_percent"].reason, role
            assert find_ncu() is None or "Nsight Compute" in (figures["l1_hit_percent"].reason or "")
    assert (roles["tiled"].figure("shared_bytes")).value  # type: ignore[union-attr]  # it is there, as asserted
    print(*found.findings, sep="\n")


@pytest.mark.skipif(find_ncu() is None, reason="Nsight Compute is not installed")
def test_counters_or_their_refusal_are_nsight_computes_own(tmp_path: Path) -> None:
    with started(tmp_path, devices="cuda") as running, Client(running.url) as client:
        assert client.ready(wait=300)
        job = client.profile(Problem(512, 512, 512), wait=True)
        (found,) = client.profiles(job_id=job.id)
    for one in found.kernels:
        hit = next(figure for figure in one.figures if figure.name == "l2_hit_percent")
        assert hit.source == "ncu" or "Nsight Compute" in (hit.reason or ""), one
