"""Devices, kernels, analysis, pages, documents, probes and metrics."""

from __future__ import annotations

import re
from importlib.metadata import version
from math import prod
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import app.web
from kernels import CATALOGUE, KERNELS

PAGES = [path for path in app.web.STATIC.rglob("*") if path.is_file() and path.suffix != ".gz"]


def test_devices_say_who_they_are_and_what_limits_them(client: httpx.Client) -> None:
    body = client.get("/devices").json()
    device = body["devices"][0]
    assert device["id"] == "opencl:0"
    assert device["limits"]["threads"] > 0
    assert device["name"] in device["model"]
    assert device["vendor"]["name"]
    assert body["reasons"] == []


def test_gauges_are_figures_or_reasons(client: httpx.Client) -> None:
    body = client.get("/devices/gauges").json()
    (device,) = body["devices"]
    assert device["device"] == "opencl:0"
    figures = [value for value in device.values() if isinstance(value, dict)]
    assert len(figures) == 6
    assert all((one["value"] is None) != (one["reason"] is None) for one in figures)
    assert 0 < device["memory_used_bytes"]["value"] < device["memory_bytes"]
    limits = client.get("/limits").json()
    assert (body["queue"], body["slab_bytes"]) == (limits["queue"], limits["slab_bytes"])


def test_kernels_are_listed_in_ladder_order_with_their_spaces(client: httpx.Client) -> None:
    listed = client.get("/kernels").json()["kernels"]
    assert [kernel["name"] for kernel in listed] == list(KERNELS)
    for kernel in listed:
        ours = KERNELS[kernel["name"]]
        assert kernel["role"] == ("serving" if kernel["name"] in CATALOGUE else "lesson")
        assert kernel["parameters"] == {name: list(values) for name, values in ours.space.parameters.items()}
        assert kernel["rules"] == list(ours.space.rules)
        assert kernel["digest"] == ours.digest
        assert kernel["shapes"] == ours.shapes
        assert kernel["architectures"] == list(ours.architectures)
        assert {(one["dtype"], one["precision"]) for one in kernel["covers"]} == set(ours.classes)
        assert {one["platform"] for one in kernel["covers"]} == set(ours.platforms)
        assert kernel["configs"] == prod(len(values) for values in kernel["parameters"].values())


def test_a_kernels_source_is_the_whole_text_that_is_compiled(client: httpx.Client) -> None:
    for name, kernel in KERNELS.items():
        answer = client.get(f"/kernels/{name}/source")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text == kernel.text


def test_version_and_health_are_where_they_are_looked_for(client: httpx.Client) -> None:
    assert client.get("/version").json() == {"name": "tilewise", "version": version("tilewise")}
    health, ready = client.get("/health").json(), client.get("/health/ready").json()
    assert (health["status"], health["reasons"]) == (ready["status"], ready["reasons"])
    assert (health["store"], [device["serves"] for device in health["devices"]]) == ("ok", [True])


def test_a_kernels_space_is_held_against_a_problem(client: httpx.Client) -> None:
    kernel = client.get("/kernels/tiled", params={"m": 100, "n": 100, "k": 100, "dtype": "float64"}).json()
    legality = kernel["legality"]
    assert len(legality["legal"]) + sum(legality["refused"].values()) == kernel["configs"]
    assert set(legality["refused"]) <= set(kernel["rules"])
    assert legality["default"] in legality["legal"]
    assert (legality["problem"]["m"], legality["problem"]["dtype"]) == (100, "float64")
    asked = client.get("/kernels/tiled?m=100&n=50&k=100&config=BM=16,BN=8,BK=32").json()["legality"]["launch"]
    assert (asked["grid"], asked["block"]) == (7 * 7, [8, 16])
    assert client.get("/kernels/tiled").json()["legality"] is None
    assert client.get("/kernels/tiled?m=1&n=1&k=1&precision=emulated").json()["legality"]["covered"] is False


def test_a_space_of_millions_is_held_against_a_problem_too(client: httpx.Client) -> None:
    for name in ("register_tiled", "skinny"):
        kernel = client.get(f"/kernels/{name}", params={"m": 16, "n": 200, "k": 300}).json()
        legality = kernel["legality"]
        assert kernel["configs"] > 10**6
        assert legality["covered"] is True
        assert legality["default"] in legality["legal"]
        assert len(legality["legal"]) + sum(legality["refused"].values()) == kernel["configs"]
    assert client.get("/kernels/skinny?m=100&n=100&k=100").json()["legality"]["covered"] is False


def test_a_product_by_a_kernel_for_other_shapes_is_refused_in_a_sentence(client: httpx.Client) -> None:
    square = [[1.0] * 40] * 40
    answer = client.post("/matmul?kernel=skinny", json={"a": square, "b": square})
    assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
    assert answer.json()["error"].endswith("it is for a C with a side of at most 32, not for 40 x 40 x 40")


def test_an_analysis_takes_a_config_in_the_tiles_place(client: httpx.Client) -> None:
    query: dict[str, Any] = {"m": 100, "n": 100, "k": 100}
    by_tile = client.get("/analysis", params=query | {"tile": 16}).json()
    text = ",".join(f"{name}={value}" for name, value in by_tile["config"].items())
    assert client.get("/analysis", params=query | {"config": text}).json() == by_tile
    flat = client.get("/analysis", params=query | {"config": text.replace("BM=16", "BM=4")}).json()
    assert (flat["tiles_m"], flat["tiles_n"]) == (25, 7)
    both, short, zero = {"tile": "16", "config": text}, {"config": "BM=16"}, {"config": text.replace("16", "0")}
    for wrong in ({}, both, short, zero):
        assert client.get("/analysis", params=query | wrong).json()["code"] == "invalid"


def test_an_analysis_works_out_the_arithmetic_of_any_tile(client: httpx.Client) -> None:
    query = {"m": 1024, "n": 1024, "k": 1024}
    small = client.get("/analysis", params=query | {"tile": 16}).json()
    large = client.get("/analysis", params=query | {"tile": 32}).json()
    assert small["config"] == {"BM": 16, "BN": 16, "BK": 16}
    assert small["blocks"] == small["tiles_m"] * small["tiles_n"] == 64 * 64
    assert small["bytes_read"] == 2 * large["bytes_read"]
    assert small["bytes_written"] == 4 * 1024**2
    assert small["flops_owned"] == 2 * 1024**3
    odd = client.get("/analysis", params={"m": 1000, "n": 1200, "k": 800, "tile": 17, "batch": 3, "dtype": "float64"})
    assert odd.json()["edge_tiles"] > 0
    naive = client.get("/analysis", params=query | {"tile": 16, "kernel": "naive"}).json()
    assert naive["bytes_read"] > large["bytes_read"]
    big = client.get("/analysis", params=dict.fromkeys(["m", "n", "k", "tile"], 2**31 - 1))
    assert big.status_code == 200


def test_probes_say_live_and_ready(client: httpx.Client) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    told = client.get("/health/ready").json()
    assert told == {"status": "ready", "reasons": [], "verified": 3, "pending": 0, "total": 3}


def test_metrics_can_be_read_by_prometheus(client: httpx.Client) -> None:
    client.post("/matmul", json={"a": [[1]], "b": [[1]]})
    client.get("/jobs/none")
    answer = client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    routes = {sample.labels["route"] for sample in families["tilewise_requests"].samples}
    assert {"/matmul", "/jobs/{job_id}"} <= routes
    labels = [sample.labels for sample in families["tilewise_product_phase_seconds"].samples]
    phases = {"receive", "queue", "build", "h2d", "kernel", "d2h", "verify", "send"}
    assert {each["phase"] for each in labels} | {"build", "verify"} == phases
    assert {each["device"] for each in labels} == {"opencl:0"}
    assert {sample.labels["device"] for sample in families["tilewise_product_seconds"].samples} == {"opencl:0"}
    assert not re.search(r" [0-9.]+e[+-]", answer.text), "some readers take 8.5e+10 for 8.5"
    for name in ("tilewise_jobs", "tilewise_trials", "tilewise_slab_lent_bytes", "tilewise_child_restarts"):
        assert families[name].documentation


def test_pages_and_documents_work_with_no_internet(client: httpx.Client) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        links = re.findall(r"""(?:src|href)\s*[=:]\s*["']([^"'#]+)["']""", page.text)
        assert links
        for link in links:
            assert not link.startswith(("http:", "https:", "//")), link
            assert link.startswith("data:") or client.get(link).status_code == 200, link


@pytest.mark.rotating
@pytest.mark.parametrize("name", sorted(str(path.relative_to(app.web.STATIC)) for path in PAGES))
def test_pages_fetch_nothing_from_elsewhere(client: httpx.Client, name: str) -> None:
    """What is vendored names its licence's address; that it asks nobody is seen in a browser."""
    text = (app.web.STATIC / name).read_bytes().decode()
    told = text.replace("http://www.w3.org/2000/svg", "")  # a name, which nobody asks for
    assert name.startswith("vendor/") or not re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}""", told)
    if not name.endswith(".html"):
        assert client.get(f"/static/{name}").content == text.encode()


def test_the_openapi_document_names_every_status_of_every_route(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    named = {
        (path, method): set(operation["responses"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    made, refused = {"200", "201", "202"}, {"400", "404", "406", "408", "409", "410", "413", "415", "422", "429"}
    assert made | refused | {"500", "503", "507"} == named["/matmul", "post"]
    assert {"200", "202", "400", "404", "408", "409", "413", "415", "422", "500", "503"} == named["/tune", "post"]
    assert {"200", "404", "422", "500", "503"} == named["/best-config", "get"]
    assert all("500" in statuses for statuses in named.values())
