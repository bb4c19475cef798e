"""Jobs over HTTP: their life, their events and how a broken stream goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from app.cli.spawn import Started
from tests.support.api.http_client import calling
from tests.support.waiting import until

_SIZES = itertools.count(9)
ENDED = {"succeeded", "failed", "cancelled"}


def order(trials: int = 2, **members: Any) -> dict[str, Any]:
    """An order that no other test gives, for the kernels that compile fast."""
    shape = {"m": next(_SIZES), "n": 16, "k": 16}
    return {"shapes": [shape], "budget": {"trials": trials}, "kernels": ["tiled"], **members}


def long_order() -> dict[str, Any]:
    """One that takes the better part of a minute even where all its kernels are compiled."""
    return order(trials=128, shapes=[{"m": 600 + next(_SIZES), "n": 600, "k": 600}])


def events(client: httpx.Client, job_id: str, after: int | None = None, most: int = 10**6) -> list[dict[str, Any]]:
    """A job's events to its end, or the first `most` of them."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    with client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        return list(itertools.islice(parsed(answer.iter_lines()), most))


def parsed(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in lines:
        if not line:
            if event:
                yield event | {"id": int(event["id"]), "data": json.loads(event["data"])}
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def ended(client: httpx.Client, job_id: str) -> dict[str, Any]:
    def job() -> dict[str, Any]:
        now: dict[str, Any] = client.get(f"/jobs/{job_id}").json()
        return now if now["state"] in ENDED else {}

    return until(job, 60, each=0.05)


def test_a_tune_is_given_more_time_while_it_runs_and_not_after_it(client: httpx.Client) -> None:
    body = long_order() | {"budget": {"trials": 256, "seconds": 30}}
    body["shapes"].append({"m": 700 + next(_SIZES), "n": 600, "k": 600})
    job = client.post("/tune", json=body).json()
    longer = client.post(f"/jobs/{job['id']}/extend?seconds=15")
    assert longer.status_code == 200, longer.text
    assert longer.json()["id"] == job["id"]
    assert longer.json()["progress"]["budget_seconds"] == pytest.approx(45)
    assert client.post(f"/jobs/{job['id']}/extend").json()["progress"]["budget_seconds"] == pytest.approx(65)
    client.delete(f"/jobs/{job['id']}")
    assert ended(client, job["id"])["state"] == "cancelled"
    refused = client.post(f"/jobs/{job['id']}/extend")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert "this tune is cancelled" in refused.json()["error"]
    assert client.post(f"/jobs/{'0' * 32}/extend").status_code == 404


@dataclass(frozen=True)
class Made:
    """Three jobs, each once: one followed to its end, one whose stream broke, and one that was waited for."""

    orders: list[dict[str, Any]]
    followed: httpx.Response
    seen: list[dict[str, Any]]
    broken: str
    parts: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    waited: httpx.Response

    @property
    def ids(self) -> list[str]:
        return [self.followed.json()["id"], self.broken, self.waited.json()["id"]]


@pytest.fixture(scope="module")
def made(live: Started) -> Made:
    orders = [order() for _ in range(3)]
    with calling(live.url) as client:
        followed = client.post("/tune", json=orders[0])
        seen = events(client, followed.json()["id"])
        broken = client.post("/tune", json=orders[1]).json()["id"]
        first = events(client, broken, most=3)
        rest = events(client, broken, after=first[-1]["id"])
        waited = client.post("/tune", json=orders[2], headers={"Prefer": "respond-async, wait=60"})
    return Made(orders, followed, seen, broken, (first, rest), waited)


def test_an_order_becomes_a_job_that_is_followed_to_its_end(client: httpx.Client, made: Made) -> None:
    answer, seen = made.followed, made.seen
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert (job["kind"], job["result"], job["finished_at"]) == ("tune", None, None)
    assert [event["id"] for event in seen] == sorted({event["id"] for event in seen})
    assert {event["event"] for event in seen} == {"trial", "progress", "end"}
    assert seen[-1]["event"] == "end"
    assert seen[-1]["data"]["state"] == "succeeded"
    done = client.get(answer.headers["location"])
    assert done.json()["state"] == "succeeded"
    assert "retry-after" not in done.headers
    assert done.json()["progress"]["done"] == 3
    assert client.get(f"/jobs/{job['id']}/result").json() == done.json()["result"]
    trials = client.get("/trials", params={"job_id": job["id"]}).json()["trials"]
    assert [trial["id"] for trial in trials] == [event["data"]["id"] for event in seen if event["event"] == "trial"]


def test_a_tuned_shape_is_answered_exactly_with_its_baselines(client: httpx.Client, made: Made) -> None:
    asked = made.orders[0]
    best = client.get("/best-config", params=asked["shapes"][0]).json()
    assert best["match"] == "exact"
    assert best["problem"] == best["matched_problem"]
    assert best["timing"]["ci95_ms"][0] <= best["timing"]["median_ms"] <= best["timing"]["ci95_ms"][1]
    assert best["gflops"] > 0
    assert best["error"]["relative_l2"] < 1e-5
    assert set(best["baselines"]) == {"naive", "tiled", "default", "vendor"}
    assert set(best["launch"]) == {"grid", "block", "shared_bytes"}
    assert best["instructions"] == "fma"
    near = client.get("/best-config", params=asked["shapes"][0] | {"k": 17}).json()
    assert near["match"] in {"nearest", "default"}
    assert near["problem"] != near["matched_problem"]
    assert near["loss_bound"] >= near["expected_loss"] >= 1


def test_a_broken_stream_goes_on_after_the_last_event_that_came(client: httpx.Client, made: Made) -> None:
    job_id, (first, rest) = made.broken, made.parts
    assert rest[0]["id"] > first[-1]["id"]
    whole = [event["data"]["id"] for event in events(client, job_id) if event["event"] == "trial"]
    parts = [event["data"]["id"] for event in first + rest if event["event"] == "trial"]
    assert parts == whole
    last = rest[-1]["id"]
    assert client.get(f"/jobs/{job_id}/events", headers={"Last-Event-ID": str(last)}).status_code == 204
    answer = client.get(f"/jobs/{job_id}/events", headers={"Last-Event-ID": "x"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_prefer_wait_answers_200_once_the_job_has_ended(made: Made) -> None:
    answer = made.waited
    assert answer.status_code == 200
    assert answer.headers["preference-applied"] == "wait=60"
    assert answer.json()["state"] == "succeeded"


def test_prefer_wait_answers_202_where_the_job_takes_longer(client: httpx.Client) -> None:
    answer = client.post("/tune", json=long_order(), headers={"Prefer": "wait=0.2"})
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=0.2"
    assert client.delete(answer.headers["location"]).status_code == 202
    assert ended(client, answer.json()["id"])["state"] == "cancelled"


def test_a_cancelled_job_stays_and_keeps_what_it_measured(client: httpx.Client) -> None:
    job_id = client.post("/tune", json=long_order()).json()["id"]
    seen = events(client, job_id, most=1)
    answer = client.delete(f"/jobs/{job_id}")
    assert (answer.status_code, answer.json()["state"]) in {(202, "cancelling"), (200, "cancelled")}
    rest = events(client, job_id, after=seen[-1]["id"])
    assert rest[-1]["event"] == "end"
    assert rest[-1]["data"]["state"] == "cancelled"
    assert ended(client, job_id)["state"] == "cancelled"
    again = client.delete(f"/jobs/{job_id}")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")


def test_a_job_without_a_result_says_so(client: httpx.Client) -> None:
    job_id = client.post("/tune", json=long_order()).json()["id"]
    answer = client.get(f"/jobs/{job_id}/result")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_result")
    client.delete(f"/jobs/{job_id}")
    ended(client, job_id)


def test_the_same_work_is_one_job(client: httpx.Client, made: Made) -> None:
    running = long_order()
    first, second = (client.post("/tune", json=running).json()["id"] for _ in range(2))
    assert first == second
    client.delete(f"/jobs/{first}")
    ended(client, first)
    asked, first = made.orders[0], made.ids[0]
    assert client.post("/tune", json=asked).json()["id"] == first
    anew = client.post("/tune", json=asked | {"retune": True}).json()["id"]
    assert anew != first
    client.delete(f"/jobs/{anew}")
    ended(client, anew)


def test_lists_are_paged_and_filtered(client: httpx.Client, made: Made) -> None:
    ids = made.ids
    seen: list[str] = []
    before: dict[str, str] = {}
    while True:
        page = client.get("/jobs", params={"limit": 2, **before}).json()
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        before = {"cursor": page["next"]}
    assert [each for each in seen if each in ids] == ids[::-1]
    assert len(seen) == len(set(seen))
    assert all(job["state"] == "failed" for job in client.get("/jobs?state=failed").json()["jobs"])
    trials: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while len(trials) < 3:
        page = client.get("/trials", params={"job_id": ids[0], "round": "search", "limit": 1, **after}).json()
        trials += page["trials"]
        after = {"cursor": page["next"]}
    assert page["next"] is None, "the third page of one is the last"
    assert len(trials) == len({trial["id"] for trial in trials}) == 3
    naive = client.get(
        "/trials", params={"job_id": ids[0], "kernel": "naive", "device": "opencl:0", "round": "search"}
    ).json()["trials"]
    assert naive == [trial for trial in trials if trial["kernel"] == "naive"]
    shape = "{m}x{n}x{k}".format(**trials[0]["problem"])
    problem = trials[0]["problem"]
    members = problem | {"trans_a": "false", "trans_b": "false"}
    for where in ({"shape": shape}, members, {"shape": shape, "dtype": "fp32"}):
        assert len(client.get("/trials", params={**where, "round": "search"}).json()["trials"]) == len(trials)
    assert client.get("/trials", params={"shape": shape, "dtype": "half"}).json() == {"trials": [], "next": None}
    listed = next(job for job in client.get("/jobs?limit=1000").json()["jobs"] if job["id"] == ids[0])
    assert listed["result"]["best"][0]["problem"] == trials[0]["problem"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/trials?problem=8x8x8", "problem is not known here: did you mean shape?"),
        ("/trials?shape=8x8", "shape is not right: a shape is 512"),
        ("/trials?shape=8&m=9", "m is 9, and 8 in the shape 8"),
        ("/jobs?cursor=bm8", "cursor is not the `next` of a page of this list"),
        ("/misses?cursor=WzFd", "cursor is not the `next` of a page of this list"),
        ("/bests?limit=0", "limit must be at least 1, got 0"),
        ("/best-config?m=1&n=1", "k is missing"),
        ("/best-config?m=1&n=1&k=x", "k must be an integer, got 'x'"),
        ("/best-config?m=1&n=1&k=1&match=near", "match must be exact, got 'near'"),
    ],
)
def test_wrong_queries_are_told_in_plain_words(client: httpx.Client, path: str, said: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["error"][: len(said)]) == (422, said)


def paged(client: httpx.Client, name: str, limit: int) -> list[Any]:
    """A list, read page by page to its end."""
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page, cursor = one_page(client, name, limit, cursor)
        found += page
    return found


def one_page(client: httpx.Client, name: str, limit: int, cursor: str = "") -> tuple[list[Any], str | None]:
    told = client.get(f"/{name}", params={"limit": limit} | ({"cursor": cursor} if cursor else {})).json()
    return told[name], told["next"]


def is_the_same_in_pages(client: httpx.Client, name: str) -> bool:
    everything, after = one_page(client, name, 1000)
    count = len(everything)
    assert after is None
    alone = one_page(client, name, max(1, count))
    return paged(client, name, max(1, count // 2)) == everything and alone == (everything, None)


def test_pages_of_every_list_end_without_a_next(client: httpx.Client) -> None:
    for size in (61, 62, 63):
        client.get("/best-config", params={"m": size, "n": 7, "k": 7})
    until(lambda: len(one_page(client, "misses", 1000)[0]) >= 3)  # they are written a little later
    for name in ("jobs", "bests", "misses", "trials", "matrices"):
        until(partial(is_the_same_in_pages, client, name), 20)


@pytest.mark.slow
def test_shapes_to_tune_are_objects_lists_or_texts(client: httpx.Client) -> None:
    shapes = [{"m": 9, "n": 8, "k": 7}, [9, 8, 7], [9, 8, 7, 1], "9x8x7", "9 x 8 x 7"]
    body = {"dtype": "fp32", "kernels": ["naive"], "budget": {"trials": 1}}
    wait = {"Prefer": "wait=60"}
    made = [client.post("/tune", json=body | {"shapes": [shape]}, headers=wait).json() for shape in shapes]
    assert len({job["id"] for job in made}) == 1
    problem = {"m": 9, "n": 8, "k": 7, "batch": 1, "dtype": "float32", "precision": "strict"}
    assert made[0]["result"]["best"][0]["problem"] == problem | {"trans_a": False, "trans_b": False}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"shapes": ["8"], "seconds": 2}, "seconds is not known here: did you mean budget.seconds?"),
        ({"shapes": ["8"], "gain_percent": 2}, "gain_percent is not known here: did you mean budget.gain_percent?"),
        ({"shapes": [[8, 8]]}, "shapes.0 is not right: a shape is [m, n, k] or [m, n, k, batch], got 2 sizes"),
        ({"shapes": ["8x8"]}, "shapes.0 is not right: a shape is 512"),
        ({"shapes": [[8, 8, 0]]}, "shapes.0.k must be at least 1, got 0"),
        ({"shapes": ["8"], "dtype": "float23"}, "dtype must be float32, float64, float16 or bfloat16, got 'float23'"),
    ],
)
def test_wrong_tunes_are_told_in_plain_words(client: httpx.Client, body: dict[str, Any], said: str) -> None:
    answer = client.post("/tune", json=body)
    assert (answer.status_code, answer.json()["error"][: len(said)]) == (422, said)


def test_a_full_queue_is_503_with_retry_after(client: httpx.Client) -> None:
    jobs = []
    for _ in range(12):
        answer = client.post("/tune", json=long_order())
        if answer.status_code == 503:
            break
        jobs.append(answer.json()["id"])
    assert (answer.status_code, answer.json()["code"]) == (503, "queue_full")
    assert answer.headers["retry-after"] == "1"
    for job_id in jobs:
        client.delete(f"/jobs/{job_id}")
    for job_id in jobs:
        assert ended(client, job_id)["state"] == "cancelled"


@pytest.mark.slow
def test_a_quiet_stream_is_kept_open_by_comments(client: httpx.Client, live: Started) -> None:
    ahead = [client.post("/tune", json=long_order()).json()["id"] for _ in range(2)]
    job_id = client.post("/tune", json=order()).json()["id"]
    with client.stream("GET", f"/jobs/{job_id}/events") as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event")) == "event: progress"
        for each in ahead:
            with calling(live.url) as other:
                other.delete(f"/jobs/{each}")
        assert any(line == "event: end" for line in lines)


@pytest.mark.slow
def test_a_comment_comes_after_15_seconds_of_silence(client: httpx.Client, live: Started) -> None:
    shapes = [{"m": 512, "n": 512, "k": 512 + i} for i in range(4)]
    ahead = client.post("/tune", json={"shapes": shapes}).json()["id"]
    job_id = client.post("/tune", json=order()).json()["id"]
    with client.stream("GET", f"/jobs/{job_id}/events") as answer:
        assert any(line.startswith(":") for line in answer.iter_lines())
    httpx.delete(f"{live.url}/jobs/{ahead}")
    ended(client, ahead)
