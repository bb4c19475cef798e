"""Profiles over HTTP, by both clients: in the device's turn of jobs, stored, each figure with its source."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.cli import main
from app.cli.spawn import Started
from tilewise import AsyncClient, Client, Job, Problem, Profile

PROBLEM = Problem(48, 40, 56)
MEMBERS = {"m": 48, "n": 40, "k": 56}
COUNTED = {"perf", "timer"}


@pytest.fixture(scope="module")
def made(live: Started) -> tuple[Job, Profile]:
    with Client(live.url) as client:
        job = client.profile(PROBLEM, wait=True)
        (found,) = client.profiles(PROBLEM, job_id=job.id)
    return job, found


@pytest.mark.rotating
def test_a_profile_is_a_job_and_each_figure_says_where_it_is_from(made: tuple[Job, Profile]) -> None:
    job, found = made
    assert (job.kind, job.state, job.result) == ("profile", "succeeded", {"profile": job.id})
    assert job.progress.done == job.progress.total == 4
    assert (found.id, found.problem, found.device) == (job.id, PROBLEM, "opencl:0")
    assert [one.role for one in found.kernels] == ["naive", "tiled", "winner", "vendor"]
    for one in found.kernels:
        assert one.refusal is None, one
        for figure in one.figures:
            assert (figure.value is None) == (figure.source == "none")
            assert (figure.reason is None) == (figure.source in COUNTED), figure
    tiled = found.kernels[1]
    figures = {figure.name: figure for figure in tiled.figures}
    assert figures["time_ms"].source == "timer"
    assert figures["shared_bytes"].source == "driver"
    assert figures["shared_bytes"].value == figures["shared_bytes"].predicted
    assert figures["l1_hit_percent"].article == 2.43
    assert figures["loaded_bytes"].source == "model"
    assert any(sentence.startswith("tiled is ") and "naive" in sentence for sentence in found.findings)


def test_profiles_are_listed_by_problem_device_and_job(made: tuple[Job, Profile], client: httpx.Client) -> None:
    job, _ = made

    def ids(**query: Any) -> list[str]:
        answer = client.get("/profiles", params=query).raise_for_status().json()
        return [one["id"] for one in answer["profiles"]]

    assert ids(**MEMBERS, device="opencl:0") == [job.id]
    assert ids(shape="48x40x56") == [job.id]
    assert ids(job_id="none") == ids(**MEMBERS, dtype="float64") == []
    assert client.get("/profiles", params={"device": "cuda:9"}).json()["code"] == "unknown_device"
    listed = client.get("/jobs", params={"kind": "profile"}).json()["jobs"]
    assert job.id in [one["id"] for one in listed]


def test_what_cannot_be_profiled_is_refused(client: httpx.Client) -> None:
    def refused(**members: Any) -> tuple[int, str]:
        answer = client.post("/profile", json={**MEMBERS, **members})
        return answer.status_code, answer.json()["code"]

    assert refused(device="cuda:9") == (404, "unknown_device")
    assert refused(m=0) == (422, "invalid")
    assert refused(m=100_000_000, n=100_000_000) == (422, "too_large")
    assert refused(precision="tf32", dtype="float64") in {(422, "unsupported"), (422, "invalid")}


@pytest.mark.slow
def test_the_asynchronous_client_and_waiting_by_a_header_find_the_same(live: Started, client: httpx.Client) -> None:
    async def asked() -> tuple[Job, list[Profile]]:
        async with AsyncClient(live.url) as own:
            job = await own.profile("16x24x8", wait=True)
            return job, await own.profiles("16x24x8")

    job, found = asyncio.run(asked())
    assert job.state == "succeeded"
    assert [one.id for one in found] == [job.id]
    waited = client.post("/profile", json={"m": 16, "n": 24, "k": 8}, headers={"Prefer": "wait=60"})
    assert (waited.status_code, waited.json()["state"]) == (200, "succeeded")
    newest = client.get("/profiles", params={"shape": "16x24x8", "limit": 1}).json()
    assert newest["profiles"][0]["id"] == waited.json()["id"]
    following = client.get("/profiles", params={"shape": "16x24x8", "limit": 1, "cursor": newest["next"]}).json()
    assert [one["id"] for one in following["profiles"]] == [job.id]


def test_a_profile_waits_for_the_tune_before_it_and_can_be_cancelled(client: httpx.Client) -> None:
    tune = client.post("/tune", json={"shapes": ["72x72x72"], "budget": {"seconds": 30}}).json()
    order = {"m": 80, "n": 80, "k": 80}
    first, second = (client.post("/profile", json=order).json() for _ in range(2))
    assert first["id"] == second["id"], "the same work became two jobs"
    assert first["state"] == "queued"
    ended = client.delete(f"/jobs/{first['id']}").json()
    assert ended["state"] == "cancelled"
    assert client.get("/profiles", params={"job_id": first["id"]}).json()["profiles"] == []
    client.delete(f"/jobs/{tune['id']}")


def test_the_command_shows_a_profile_with_its_marks(
    made: tuple[Job, Profile], live: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made
    assert main(["profile", "48x40x56", "--stored", "--url", live.url]) == 0
    shown = capsys.readouterr().out
    assert "A40 95.2" in shown
    assert "Not counted: " in shown
    assert "m by the model" in shown
    assert main(["profile", "47x40x56", "--stored", "--url", live.url]) == 3
