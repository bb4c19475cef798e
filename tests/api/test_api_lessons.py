"""Lessons over HTTP: compiled, verified and measured where they are asked for, and served by no path."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.cli import main
from app.cli.spawn import Started
from kernels import CATALOGUE
from tests.support.api.http_client import calling
from tests.support.waiting import until
from tilewise import AsyncClient, Client, Lessons

# A shape that no other test has, with rows of whole 16 bytes.
SHAPE = {"m": 76, "n": 84, "k": 44}
ASKED = ("lesson02_coalesced", "lesson04_conflict_free", "lesson07_vectorised")
RAW = {"Content-Type": "application/octet-stream"}
ENDED = {"succeeded", "failed", "cancelled"}


def tuned(client: httpx.Client, kernels: tuple[str, ...]) -> dict[str, Any]:
    asked = {"shapes": [SHAPE], "kernels": list(kernels), "budget": {"trials": 6, "seconds": 120}}
    job = client.post("/tune", json=asked).raise_for_status().json()["id"]

    def ended() -> dict[str, Any]:
        now: dict[str, Any] = client.get(f"/jobs/{job}").json()
        return now if now["state"] in ENDED else {}

    return until(ended, 180, each=0.05)


@pytest.fixture(scope="module")
def job(live: Started) -> dict[str, Any]:
    with calling(live.url) as client:
        return tuned(client, ASKED)


@pytest.mark.slow
def test_lessons_are_verified_and_measured_by_a_job_of_their_own(job: dict[str, Any], client: httpx.Client) -> None:
    assert job["state"] == "succeeded", job
    (best,) = job["result"]["best"]
    assert best["kernel"] in ASKED
    assert best["median_ms"] > 0
    trials = client.get("/trials", params={"job_id": job["id"], "limit": 100}).json()["trials"]
    measured = {trial["kernel"] for trial in trials if trial["state"] == "measured"}
    assert set(ASKED) <= measured <= {*ASKED, "vendor"}


@pytest.mark.slow
def test_what_a_lesson_won_serves_nothing(job: dict[str, Any], client: httpx.Client) -> None:
    best = client.get("/best-config", params=SHAPE).json()
    assert best["kernel"] in CATALOGUE
    assert best["match"] != "exact", "the job of lessons promoted something"
    near = client.get("/best-config", params={**SHAPE, "m": SHAPE["m"] + 1}).json()
    assert near["kernel"] in CATALOGUE
    bests = client.get("/bests", params={"limit": 1000}).json()["bests"]
    assert {one["kernel"] for one in bests} <= set(CATALOGUE)
    assert not [one for one in bests if one.get("job_id") == job["id"]]
    forced = client.post("/matmul", params={"m": 1, "n": 1, "k": 1, "kernel": ASKED[0]}, content=b"\0" * 8, headers=RAW)
    assert (forced.status_code, forced.json()["code"]) == (404, "unknown_kernel")


def test_lessons_and_kernels_that_serve_are_not_tuned_by_one_job(client: httpx.Client) -> None:
    answer = client.post("/tune", json={"shapes": [SHAPE], "kernels": ["tiled", ASKED[0]]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "a job of their own" in answer.json()["detail"]


def test_a_lesson_is_analysed_as_any_kernel_is(client: httpx.Client) -> None:
    sizes = {"m": 1024, "n": 1024, "k": 1024}
    told = {
        name: client.get("/analysis", params={**sizes, "kernel": name, "config": "TILE=16"}).raise_for_status().json()
        for name in ("lesson01_naive", "lesson02_coalesced", "lesson03_tiled")
    }
    assert [each["bytes_read"] for each in told.values()] == [2**33, 2**33, 2**29]
    assert told["lesson01_naive"]["predicted_ms"] > told["lesson02_coalesced"]["predicted_ms"]


@pytest.mark.slow
def test_the_ladder_is_told_with_what_was_measured(job: dict[str, Any], client: httpx.Client) -> None:
    assert job["state"] == "succeeded"
    told = client.get("/lessons", params={**SHAPE, "change": "TILE=8"}).raise_for_status().json()
    steps = told["lessons"]
    assert [step["number"] for step in steps] == list(range(1, 15))
    assert {step["kernel"] for step in steps if step["run"] and step["run"]["measured_ms"]} >= set(ASKED)
    assert [step["number"] for step in steps if step["refusal"]] == [11, 12, 13, 14]
    for step in steps:
        assert step["idea"]
        assert step["source"].startswith("// ")
        assert step["diff"].startswith("--- lesson") == (step["number"] > 1)
        assert (step["run"] is None) == (step["refusal"] is not None)
    assert [step["number"] for step in steps if step["change"] == {"TILE": 8}] == [1, 2, 3, 4]
    assert not any(step["change"] for step in steps[4:])
    assert steps[2]["changed"]["bytes_read"] == 4 * 44 * (76 * 11 + 84 * 10)
    challenge = [one for one in steps[2]["run"]["accesses"] if one["what"] == "stores to As"]
    assert challenge[0]["taken"] > challenge[0]["least"] == 1


@pytest.mark.slow
def test_the_client_has_the_ladder_and_so_has_the_command(
    live: Started, job: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert job["state"] == "succeeded"
    shape = (SHAPE["m"], SHAPE["n"], SHAPE["k"])
    with Client(live.url) as client:
        told = client.lessons(shape, change={"TILE": 8})
    assert asyncio.run(alone(live.url, shape)) == told
    assert told.lessons[3].run is not None
    assert told.lessons[3].run.measured_ms is not None
    words = ["learn", "x".join(map(str, shape)), "--rung", "2", "--seconds", "20", "--url", live.url, "--quiet"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for word in (
        "neighbours read neighbours",
        "measured",
        "times as fast as the rung below",
        "try next",
        "+++ lesson02",
    ):
        assert word in said, said
    assert main([*words[:-1], "--change", "TILE=x"]) == 2


async def alone(url: str, shape: tuple[int, int, int]) -> Lessons:
    async with AsyncClient(url) as client:
        return await client.lessons(shape, change={"TILE": 8})
