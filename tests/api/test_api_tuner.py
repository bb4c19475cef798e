"""What the tuner tells over HTTP: budgets, progress, upgrades, bests, misses, recordings; and HEAD."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import pytest

from app.cli.spawn import Started
from app.tuning.replay import read
from tests.support.api.http_client import calling
from tests.support.waiting import until

_SIZES = itertools.count(301)
ENDED = {"succeeded", "failed", "cancelled"}


def order(trials: int | None = 4, **members: Any) -> dict[str, Any]:
    """An order that no other test gives, for the kernels that compile fast."""
    shape = {"m": next(_SIZES), "n": 24, "k": 16}
    return {"shapes": [shape], "budget": {"trials": trials}, "kernels": ["tiled"], **members}


def tuned(client: httpx.Client, asked: dict[str, Any]) -> dict[str, Any]:
    job = client.post("/tune", json=asked).json()["id"]

    def ended() -> dict[str, Any]:
        now: dict[str, Any] = client.get(f"/jobs/{job}").json()
        return now if now["state"] in ENDED else {}

    found = until(ended, 180, each=0.05)
    assert found["state"] == "succeeded", found
    return found


def stopped(client: httpx.Client, *jobs: str) -> None:
    for job in jobs:
        client.delete(f"/jobs/{job}")
    until(lambda: all(client.get(f"/jobs/{job}").json()["state"] in ENDED for job in jobs), 60, each=0.05)


@dataclass(frozen=True)
class Tuned:
    """A shape that was asked for twice before it was tuned."""

    shape: dict[str, int]
    job: str


@pytest.fixture(scope="module")
def tune(live: Started) -> Tuned:
    asked = order()
    shape = asked["shapes"][0]
    with calling(live.url) as client:
        for _ in range(2):
            assert client.get("/best-config", params=shape).json()["match"] in {"nearest", "default"}
        until(lambda: shape["m"] in missed(client))
        return Tuned(shape, tuned(client, asked)["id"])


def missed(client: httpx.Client) -> dict[int, dict[str, Any]]:
    misses = client.get("/misses", params={"device": "opencl:0", "limit": 1000}).json()["misses"]
    assert [each["count"] for each in misses] == sorted((each["count"] for each in misses), reverse=True)
    return {each["problem"]["m"]: each for each in misses}


@pytest.mark.parametrize("strategy", ["auto", "exhaustive", "genetic", "random"])
def test_every_strategy_is_taken(client: httpx.Client, strategy: str) -> None:
    answer = client.post("/tune", json=order(strategy=strategy))
    assert answer.status_code == 202
    stopped(client, answer.json()["id"])


@pytest.mark.parametrize("budget", [{"gain_percent": 0}, {"gain_percent": 100}, {"gain": 1}, {"gain_percent": "1"}])
def test_a_gain_that_is_no_percentage_is_refused(client: httpx.Client, budget: dict[str, Any]) -> None:
    answer = client.post("/tune", json=order() | {"budget": budget})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.slow
def test_a_tune_may_end_once_little_is_to_be_gained(client: httpx.Client) -> None:
    asked = order() | {"budget": {"gain_percent": 90, "seconds": 120}}
    job = tuned(client, asked)
    assert job["progress"]["done"] < job["progress"]["total"]


def test_a_running_job_says_what_it_does_and_how_long_it_may_take(client: httpx.Client) -> None:
    job = client.post("/tune", json=order(None) | {"budget": {"seconds": 30}}).json()
    assert (job["progress"]["phase"], job["progress"]["eta_seconds"]) == (None, None)

    def searching() -> dict[str, Any]:
        progress: dict[str, Any] = client.get(f"/jobs/{job['id']}").json()["progress"]
        return progress if progress["phase"] == "search" else {}

    now = until(searching, 30)
    assert now["budget_seconds"] == 30
    assert 0 < now["elapsed_seconds"] < 30
    assert 0 < now["eta_seconds"] <= 30
    stopped(client, job["id"])
    ended = client.get(f"/jobs/{job['id']}").json()["progress"]
    assert (ended["phase"], ended["eta_seconds"]) == (None, None)


def test_a_budget_in_which_no_trial_fits_is_refused_with_what_it_takes(client: httpx.Client) -> None:
    asked = {"shapes": [{"m": 16384, "n": 16384, "k": 16384}], "budget": {"seconds": 2}}
    answer = client.post("/tune", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "budget_too_small")
    needed = answer.json()["needed_seconds"]
    assert needed > 10
    assert f"--seconds {needed}" in answer.json()["error"]


def test_a_job_that_is_cancelled_is_cancelling_until_it_has_ended(client: httpx.Client) -> None:
    job = client.post("/tune", json=order(None) | {"budget": {"seconds": 60}}).json()["id"]
    until(lambda: client.get(f"/jobs/{job}").json()["progress"]["phase"] is not None, 60)
    assert client.delete(f"/jobs/{job}").json()["state"] in {"cancelling", "cancelled"}
    states: list[str] = []

    def has_ended() -> bool:
        states.append(client.get(f"/jobs/{job}").json()["state"])
        return states[-1] in ENDED

    until(has_ended, 60, each=0.01, meanwhile=lambda: {*states})
    assert {*states} <= {"cancelling", "cancelled"}


def test_a_stricter_request_upgrades_the_job_and_a_smaller_one_joins_it(client: httpx.Client) -> None:
    ahead = client.post("/tune", json=order(None) | {"budget": {"seconds": 120, "trials": 500}}).json()["id"]
    asked = order(20)
    first = client.post("/tune", json=asked).json()["id"]
    larger = asked | {"budget": {"trials": 40}}
    assert client.post("/tune", json=larger).json()["id"] == first
    assert client.post("/tune", json=asked).json()["id"] == first
    crossing = asked | {"budget": {"trials": 10, "seconds": 100}}
    other = client.post("/tune", json=crossing).json()["id"]
    assert other != first
    stopped(client, ahead, first, other)


@pytest.mark.slow
def test_the_answer_says_how_it_was_measured_and_beside_what(client: httpx.Client, tune: Tuned) -> None:
    best = client.get("/best-config", params=tune.shape).json()
    assert best["timing"]["policy"] in {"events", "graph"}
    assert best["timing"]["samples"] >= 2
    assert set(best["baselines"]) == {"naive", "tiled", "default", "vendor"}
    assert best["baselines"]["default"]["timing"]["median_ms"] >= best["timing"]["median_ms"]
    assert (best["provisional"], best["expected_loss"], best["loss_bound"]) == (False, None, None)
    near = client.get("/best-config", params=tune.shape | {"m": tune.shape["m"] + 1000}).json()
    assert near["match"] in {"nearest", "default"}
    assert near["loss_bound"] >= near["expected_loss"] >= 1


@pytest.mark.slow
def test_all_bests_are_listed_and_filtered(client: httpx.Client, tune: Tuned) -> None:
    bests = client.get("/bests").json()["bests"]
    assert tune.shape in [{name: best["problem"][name] for name in "mnk"} for best in bests]
    assert {best["match"] for best in bests} <= {"exact", "stale"}
    assert client.get("/bests", params={"dtype": "float64"}).json()["bests"] == []
    assert client.get("/bests", params={"device": "opencl:0"}).json()["bests"] == bests
    assert client.get("/bests", params={"device": "cuda:9"}).status_code == 404


def test_misses_count_every_answer_less_than_exact(client: httpx.Client) -> None:
    shape = {"m": 22, "n": 14, "k": 15}
    for _ in range(3):
        client.get("/best-config", params=shape)
    client.get("/best-config", params=shape | {"match": "exact"})
    raw = {"Content-Type": "application/octet-stream"}
    body = bytes(4 * shape["k"] * (shape["m"] + shape["n"]))
    assert client.post("/matmul", params=shape, content=body, headers=raw).status_code == 200
    until(lambda: missed(client).get(shape["m"], {}).get("count") == 4)
    miss = missed(client)[shape["m"]]
    assert miss["match"] in {"nearest", "default"}
    assert client.get("/wants").status_code == 404
    assert "tilewise_misses_total" in client.get("/metrics").text
    assert client.delete("/misses", params=shape).status_code == 204
    assert shape["m"] not in missed(client)
    assert client.delete("/misses", params=shape).json()["code"] == "unknown_miss"
    assert client.delete("/misses", params={"m": 22}).status_code == 422


@pytest.mark.slow
def test_deleted_best_is_answered_as_never_tuned(client: httpx.Client) -> None:
    asked = order(1, kernels=["naive"])
    shape = asked["shapes"][0]
    before = client.get("/best-config", params=shape)
    assert before.json()["match"] in {"nearest", "default"}
    assert client.get("/best-config", params=shape).content == before.content
    assert client.post("/tune", json=asked, headers={"Prefer": "wait=60"}).json()["state"] == "succeeded"
    assert client.get("/best-config", params=shape).json()["match"] == "exact"
    assert client.delete("/bests", params=shape | {"dtype": "float64"}).json()["code"] == "not_tuned"
    assert client.delete("/bests", params=shape).status_code == 204
    assert client.get("/best-config", params=shape).json()["match"] in {"nearest", "default"}
    assert client.delete("/bests", params=shape).status_code == 404
    assert shape["m"] not in {best["problem"]["m"] for best in client.get("/bests?limit=1000").json()["bests"]}
    again = client.post("/tune", json=asked, headers={"Prefer": "wait=60"})
    assert (again.status_code, again.json()["state"]) == (200, "succeeded")
    assert client.get("/best-config", params=shape).json()["match"] == "exact"


def test_tuned_shape_is_no_miss(client: httpx.Client, tune: Tuned) -> None:
    assert tune.shape["m"] not in missed(client)


def test_trials_tell_round_and_samples_if_asked(client: httpx.Client, tune: Tuned) -> None:
    trials = client.get("/trials", params={"job_id": tune.job}).json()["trials"]
    assert {"search", "report"} <= {trial["round"] for trial in trials} <= {"search", "final", "report"}
    assert {trial["samples_ms"] for trial in trials} == {None}
    measured = [trial for trial in trials if trial["timing"]]
    assert all(set(trial["timing"]) >= {"policy", "dropped", "limited"} for trial in measured)
    params = {"job_id": tune.job, "samples": "true", "round": "report"}
    for trial in client.get("/trials", params=params).json()["trials"]:
        assert trial["round"] == "report"
        assert len(trial["samples_ms"]) == trial["timing"]["samples"]


def test_a_job_s_events_have_its_trials_as_the_list_has_them(client: httpx.Client, tune: Tuned) -> None:
    told = {
        one["id"]: one for one in client.get("/trials", params={"job_id": tune.job, "limit": 1000}).json()["trials"]
    }
    lines = client.get(f"/jobs/{tune.job}/events", timeout=60).text.splitlines()
    events = [
        json.loads(lines[place + 1].partition(":")[2]) for place, line in enumerate(lines) if line == "event: trial"
    ]
    assert {one["id"] for one in events} == set(told)
    for event in events:
        trial = told[event["id"]]
        for name in ("round", "kernel", "config", "state", "retaken"):
            assert event[name] == trial[name]
        timing = trial["timing"] or {"median_ms": None, "ci95_ms": None}
        assert (event["median_ms"], event["ci95_ms"]) == (timing["median_ms"], timing["ci95_ms"])
        assert datetime.fromisoformat(event["created_at"]) == datetime.fromisoformat(trial["created_at"])


def test_a_job_is_exported_as_a_recording_that_can_be_read(client: httpx.Client, tune: Tuned) -> None:
    answer = client.get("/trials", params={"job_id": tune.job, "format": "replay"})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    recordings = {recording.kernel: recording for recording in read(answer.text.splitlines())}
    trials = client.get("/trials", params={"job_id": tune.job, "limit": 1000}).json()["trials"]
    for kernel, recording in recordings.items():
        tried = {tuple(trial["config"].items()) for trial in trials if trial["kernel"] == kernel}
        assert {tuple(config.items()) for config in recording.outcomes} == tried
    assert "tiled" in recordings
    assert client.get("/trials", params={"job_id": "nothing", "format": "replay"}).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/best-config?m=8&n=8&k=8", "/jobs", "/devices", "/health/live", "/openapi.json", "/", "/metrics", "/misses"],
)
def test_head_answers_as_get_does_but_for_the_body(client: httpx.Client, path: str) -> None:
    get, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == get.headers["content-length"]


def test_head_of_a_stream_ends_at_once_and_of_an_order_is_refused(client: httpx.Client) -> None:
    job = client.post("/tune", json=order(100)).json()["id"]
    head = client.head(f"/jobs/{job}/events", timeout=5)
    assert (head.status_code, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert client.head(f"/jobs/{job}").status_code == 200
    assert client.head("/jobs/nothing").status_code == 404
    assert client.head("/tune").status_code == 405
    stopped(client, job)
