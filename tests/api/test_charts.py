"""What charts are drawn from, against the trials it comes from: grids, rooflines, traces, the stream of all jobs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started
from tests.support.api.http_client import calling
from tests.support.waiting import until
from tilewise import Client, Problem

_SHAPE: dict[str, Any] = {"m": 40, "n": 24, "k": 16}
_CSV = {"Accept": "text/csv"}


@dataclass
class Followed:
    """A tune of one shape, and what the stream of all jobs told of it from before it was submitted."""

    job: dict[str, Any] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for has_text, group in itertools.groupby(lines, key=bool):
        if has_text:
            members = dict(line.split(": ", 1) for line in group)
            yield members | {"data": json.loads(members["data"])}


def follow(url: str, begun: threading.Event, into: list[dict[str, Any]]) -> None:
    with httpx.stream("GET", f"{url}/events", timeout=60) as answer:
        for event in events(answer.iter_lines()):
            begun.set()
            into.append(event)
            if event["event"] == "job" and event["data"]["state"] in {"succeeded", "failed"}:
                return


@pytest.fixture(scope="module")
def tuned(live: Started) -> Followed:
    found, begun = Followed(), threading.Event()
    thread = threading.Thread(target=follow, args=(live.url, begun, found.events))
    thread.start()
    assert begun.wait(30)
    order = {"shapes": [_SHAPE], "kernels": ["naive", "tiled"], "budget": {"trials": 12}}
    with calling(live.url) as client:
        found.job = client.post("/tune", json=order).json()

        def has_ended() -> bool:
            found.job = client.get(f"/jobs/{found.job['id']}").json()
            return found.job["state"] in {"succeeded", "failed", "cancelled"}

        until(has_ended, 120)
        found.trials = client.get("/trials", params={"job_id": found.job["id"], "limit": 1000}).json()["trials"]
    thread.join(30)
    assert not thread.is_alive()
    return found


def fastest(trials: list[dict[str, Any]], kernel: str) -> dict[str, float]:
    """Each config's time: of its report, else its final, else its search."""
    order = ("search", "final", "report")
    own = sorted((one for one in trials if one["kernel"] == kernel), key=lambda one: order.index(one["round"]))
    times = {json.dumps(one["config"]): one["timing"] and one["timing"]["median_ms"] for one in own}
    return {config: time for config, time in times.items() if time}


@pytest.mark.slow
def test_a_cell_of_the_landscape_has_the_best_time_of_its_trials(client: httpx.Client, tuned: Followed) -> None:
    query: dict[str, Any] = _SHAPE | {"kernel": "tiled", "x": "BN", "y": "BM"}
    grid = client.get("/landscape", params=query).json()
    cells = {(cell["x"], cell["y"]): cell for cell in grid["cells"]}
    assert list(cells) == [(x, y) for y in grid["y_values"] for x in grid["x_values"]]
    times = fastest(tuned.trials, "tiled")
    assert times
    for place, cell in cells.items():
        own = [time for text, time in times.items() if (json.loads(text)["BN"], json.loads(text)["BM"]) == place]
        assert cell["median_ms"] == (min(own) if own else None)
        assert cell["measured"] == len(own)
        assert (cell["state"] == "measured") is bool(own)
        assert (cell["reason"] is None) is (cell["state"] in {"measured", "untried"})
    naive = {
        cell["state"]: cell for cell in client.get("/landscape", params=_SHAPE | {"kernel": "naive"}).json()["cells"]
    }
    assert naive["illegal"]["reason"] == "more threads a block than the device allows"
    assert set(grid["kernels"]) == {"naive", "tiled"}
    held = json.loads(min(times, key=lambda text: times[text]))
    one = client.get("/landscape", params=query | {"held": f"BK={held['BK']}"}).json()["cells"]
    assert all(cell["config"] is None or cell["config"]["BK"] == held["BK"] for cell in one)
    wrongs: tuple[dict[str, Any], ...] = ({"x": "BQ"}, {"x": "BM"}, {"held": "BQ=1"}, {"kernel": "nobody"}, {"m": 41})
    for wrong in wrongs:
        assert client.get("/landscape", params=query | wrong).status_code in {404, 422}


@pytest.mark.slow
def test_importance_is_of_the_kernels_trials_and_occupancy_of_devices_with_multiprocessors(
    client: httpx.Client, tuned: Followed
) -> None:
    told = client.get("/importance", params=_SHAPE | {"kernel": "tiled"}).json()
    times = fastest(tuned.trials, "tiled")
    values = [json.loads(text) for text in times]
    assert told["measured"] == len(times)
    assert {one["name"] for one in told["parameters"]} == {
        name for name in values[0] if len({one[name] for one in values}) > 1
    }
    assert all(0 <= one["alone"] <= 1 and one["shuffled"] is None for one in told["parameters"])
    assert client.get("/importance", params=_SHAPE | {"kernel": "nobody"}).status_code == 404
    held = client.get("/occupancy", params=_SHAPE | {"tile": 8}).json()
    assert (held["config"], held["occupancy"], held["curves"]) == ({"BM": 8, "BN": 8, "BK": 8}, None, [])
    assert client.get("/occupancy", params=_SHAPE | {"tile": 8, "kernel": "nobody"}).status_code == 404


@pytest.mark.slow
def test_a_roofline_says_where_each_ceiling_comes_from(client: httpx.Client, tuned: Followed) -> None:
    limits = client.get("/devices").json()["devices"][0]["limits"]
    told = client.get("/roofline", params={"points": "trials", "job_id": tuned.job["id"]}).json()
    ceilings = {each["name"]: each for each in told["ceilings"]}
    assert (ceilings["memory"]["value"], ceilings["memory"]["source"]) == (limits["bandwidth"], "measured")
    assert (ceilings["fma"]["value"], ceilings["fma"]["source"]) == (limits["peak"], "estimated")
    assert ceilings["reached"]["value"] == pytest.approx(1e9 * max(point["gflops"] for point in told["points"]))
    m, n, k = _SHAPE.values()
    tiled = [point for point in told["points"] if point["kernel"] == "tiled"]
    assert {json.dumps(each["config"]): each["median_ms"] for each in tiled} == fastest(tuned.trials, "tiled")
    for point in tiled:
        assert point["intensity"] == pytest.approx(2 * m * n * k / (4 * (m * k + k * n + m * n)))
        assert point["gflops"] == pytest.approx(2 * m * n * k / point["median_ms"] / 1e6)
        roof = min(limits["peak"], point["intensity"] * limits["bandwidth"])
        assert point["attained"] == pytest.approx(1e9 * point["gflops"] / roof)
    bests = client.get("/roofline", params=_SHAPE).json()["points"]
    assert [point["round"] for point in bests] == ["report"]
    assert client.get("/roofline", params={"dtype": "float64", "job_id": tuned.job["id"]}).json()["points"] == []


@pytest.mark.slow
def test_one_stream_tells_what_happens_to_all_jobs(client: httpx.Client, live: Started, tuned: Followed) -> None:
    own = [one["data"] for one in tuned.events if one["data"].get("job") == tuned.job["id"]]
    assert {one["id"] for one in own} == {trial["id"] for trial in tuned.trials}
    states = [one["data"]["state"] for one in tuned.events if one["data"].get("id") == tuned.job["id"]]
    assert list(dict.fromkeys(states)) == ["queued", "running", "succeeded"]
    assert tuned.events[0]["event"] == "health"
    last = int(tuned.trials[-3]["id"])
    with httpx.stream("GET", f"{live.url}/events", headers={"Last-Event-ID": str(last)}, timeout=60) as answer:
        missed = list(itertools.islice(events(answer.iter_lines()), 3))
    assert [one["data"]["id"] for one in missed[1:]] == [trial["id"] for trial in tuned.trials[-2:]]
    assert client.get("/events", headers={"Last-Event-ID": "x"}).json()["code"] == "invalid"


@pytest.mark.slow
def test_tables_are_comma_separated_where_that_is_asked_for(client: httpx.Client, tuned: Followed) -> None:
    query = {"job_id": tuned.job["id"], "limit": 5}
    answer = client.get("/trials", params=query, headers=_CSV)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["id"]) for row in rows] == [trial["id"] for trial in tuned.trials[:5]]
    assert [float(row["timing.median_ms"] or 0) for row in rows] == [
        (trial["timing"] or {"median_ms": 0})["median_ms"] for trial in tuned.trials[:5]
    ]
    following = answer.headers["link"].partition("<")[2].partition(">")[0]
    again = client.get(f"/trials{following}", headers=_CSV)
    assert again.text.splitlines()[1].split(",")[0] == str(tuned.trials[5]["id"])
    for path in (
        "/landscape",
        "/importance?kernel=tiled",
        "/roofline",
        "/analysis?tile=16",
        "/bests/history",
        "/trace",
    ):
        said: dict[str, Any] = {} if path == "/trace" else _SHAPE
        url = httpx.URL(path).copy_merge_params(said)
        table = client.get(url, headers=_CSV)
        assert table.headers["content-type"].startswith("text/csv"), path
        assert len(table.text.splitlines()) > 1, path
        assert client.get(url, headers={"Accept": "image/png"}).status_code == 406, path


@pytest.mark.slow
def test_a_job_exports_what_it_spent_its_time_on(client: httpx.Client, tuned: Followed) -> None:
    told = client.get(f"/jobs/{tuned.job['id']}/trace").json()
    spans = [event for event in told["traceEvents"] if event["ph"] == "X"]
    threads = {event["tid"]: event["args"]["name"] for event in told["traceEvents"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in spans} <= set(threads)
    assert {"job", "store", "opencl:0", "HTTP"} <= {name.split(" ")[0] for name in threads.values()}, threads
    assert {"tune job", "tune shape", "trial", "store write"} <= {event["name"] for event in spans}
    asked = [event for event in spans if event["cat"] == "HTTP"]
    assert {("GET /jobs/{job_id}", 200)} <= {(one["name"], one["args"]["http.response.status_code"]) for one in asked}
    tried = sum(trial["round"] == "search" for trial in tuned.trials)
    assert sum(event["name"] == "trial" for event in spans) >= tried
    for thread in threads:
        ends: list[float] = []
        for event in sorted((one for one in spans if one["tid"] == thread), key=lambda one: (one["ts"], -one["dur"])):
            ends = [end for end in ends if end > event["ts"] + 1e-3]
            assert all(event["ts"] + event["dur"] <= end + 1e-3 for end in ends), "slices of a thread lie in each other"
            ends.append(event["ts"] + event["dur"])
    assert client.get("/jobs/none/trace").json()["code"] == "unknown_job"


@pytest.mark.slow
def test_the_client_has_the_same(client: httpx.Client, live: Started, tuned: Followed) -> None:
    problem = Problem(*_SHAPE.values())
    with Client(live.url) as python:
        grid, roof = python.landscape(problem, kernel="tiled"), python.roofline(problem, points="trials")
        told = client.get("/landscape", params=_SHAPE | {"kernel": "tiled"}).json()
        assert [cell.median_ms for cell in grid.cells] == [cell["median_ms"] for cell in told["cells"]]
        asked = client.get("/roofline", params=_SHAPE | {"points": "trials"}).json()
        assert [point.attained for point in roof.points] == [point["attained"] for point in asked["points"]]
        assert roof.ceilings[0].source == "measured"
        cell = next(each for each in grid.cells if each.config)
        cost = python.analysis(problem.shape, kernel="tiled", config=cell.config)
        assert (cost.config, cost.refusal) == (cell.config, None)
        assert json.loads(python.job_trace(tuned.job["id"]))["traceEvents"]


def test_a_trace_adds_up_to_the_product(client: httpx.Client) -> None:
    for m, n, k, tile in ((8, 8, 8, 4), (7, 5, 6, 4)):
        query = {"m": m, "n": n, "k": k, "tile": tile}
        for row, column in itertools.product(range(-(-m // tile)), range(-(-n // tile))):
            told = client.get("/trace", params=query | {"row": row, "column": column}).json()
            c = np.array(told["a"]) @ np.array(told["b"])
            own = c[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
            assert np.array_equal(told["c"], c)
            sums = sum(np.array(phase["a"]) @ np.array(phase["b"]) for phase in told["phases"])
            assert np.array_equal(told["phases"][-1]["sums"], own)
            assert np.array_equal(sums, own)
    whole = client.get("/trace").json()
    assert (whole["reads_naive"], whole["reads_tiled"]) == (2 * 8**3, 2 * 8**3 // 4)
    assert client.get("/trace?row=2").json()["code"] == "invalid"


def test_a_trace_has_the_articles_numbers_and_tells_its_slip(client: httpx.Client) -> None:
    told = client.get("/trace?operands=article").raise_for_status().json()
    assert told["phases"][0]["a"] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    assert told["phases"][1]["b"][0] == [17, 21, 25, 29]
    assert told["phases"][0]["sums"] == told["phases"][0]["printed"]
    assert told["phases"][0]["sums"][0] == [30, 70, 110, 150]
    assert (told["phases"][1]["sums"][0][0], told["phases"][1]["printed"][0]) == (1404, [1400, 1760, 2120, 2480])
    assert np.array_equal(told["c"], np.array(told["a"]) @ np.array(told["b"]))
    assert [[phase["reads_naive"], phase["reads_tiled"]] for phase in told["phases"]] == [[128, 32], [256, 64]]
    assert client.get("/trace?operands=article&row=1").json()["phases"][0]["printed"] is None
    assert client.get("/trace").json()["phases"][0]["printed"] is None
    assert client.get("/trace?operands=article&n=4").json()["code"] == "invalid"


def test_an_analysis_is_of_any_kernel(client: httpx.Client) -> None:
    problem: dict[str, Any] = {"m": 200, "n": 300, "k": 100}
    for name in ("register_tiled", "batched", "skinny"):
        sizes = problem | {"skinny": {"m": 8}, "batched": {"m": 20, "n": 30, "batch": 4}}.get(name, {})
        default = client.get(f"/kernels/{name}", params=sizes).json()["legality"]["default"]
        text = ",".join(f"{key}={value}" for key, value in default.items())
        told = client.get("/analysis", params=sizes | {"kernel": name, "config": text}).json()
        assert told["config"] == default
        assert told["refusal"] is None
        assert told["predicted_ms"] > 0
        wrong = client.get("/analysis", params=sizes | {"kernel": name, "config": text.replace("BM=", "BM=9")})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid")
    assert client.get("/analysis", params=problem | {"tile": 1024}).json()["refusal"]
    assert client.get("/analysis", params=problem | {"tile": 8, "kernel": "nobody"}).json()["code"] == "unknown_kernel"
