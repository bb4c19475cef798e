"""A service that is full says so before a body is sent, in numbers, and stays well."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from app.cli.spawn import Started
from tests.support.api.http_client import calling
from tests.support.api.slab_usage import all_given_back
from tests.support.started_services import settled
from tests.support.waiting import until

RAW = {"Content-Type": "application/octet-stream"}
LONG = "m=1000&n=1000&k=1000&trans_b=true&kernel=naive"  # rows of B against rows of A: half a second


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A service with two places in its queue and slab bytes for three products of a thousand a side."""
    folder = tmp_path_factory.mktemp("narrow")
    with settled(folder, queue="2", slab_bytes=str(38 * 10**6)) as running:
        yield running


def expecting(url: str, query: str, length: int) -> tuple[int, dict[str, str], bytes, float]:
    """The answer to a request whose body waits for 100 Continue: status, headers, body, seconds."""
    address, begun = urlsplit(url), time.perf_counter()
    lines = [f"POST /matmul?{query} HTTP/1.1", "Host: localhost", f"Content-Type: {RAW['Content-Type']}"]
    lines += [f"Content-Length: {length}", "Expect: 100-continue", "", ""]
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        seconds = time.perf_counter() - begun
        head, _, body = data.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest)
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(65536)
        return int(first.split()[1]), headers, body, seconds


def fill(client: httpx.Client) -> list[str]:
    """Two products that take a while, as jobs: their places."""
    ones = bytes(8 * 10**6)
    answers = [client.post(f"/matmul?{LONG}", content=ones, headers=RAW | {"Prefer": "respond-async"}) for _ in "ab"]
    assert [answer.status_code for answer in answers] == [202, 202]
    return [answer.headers["Location"] for answer in answers]


def empty(client: httpx.Client, places: list[str]) -> None:
    for place in places:
        client.delete(place)
    until(lambda: all(client.get(place).json()["state"] not in {"queued", "running"} for place in places), 60)


@pytest.mark.slow
def test_full_queue_refuses_before_the_body_is_sent(narrow: Started) -> None:
    with calling(narrow.url) as client:
        places = fill(client)
        status, headers, body, _ = expecting(narrow.url, "m=100&n=100&k=100", 80_000)
        told = json.loads(body)
        assert (status, told["code"]) == (503, "queue_full")
        assert (told["limit"], told["size"]) == (2, 2)
        assert 1 <= told["retry_after"] == int(headers["retry-after"]) <= 60
        bounds = client.get("/limits").json()
        assert (bounds["queue"], bounds["waiting"]) == (2, 2)
        assert client.get("/health/live").status_code == 200
        empty(client, places)
        until(lambda: not client.get("/limits").json()["waiting"], 10)


@pytest.mark.slow
def test_what_does_not_fit_now_is_refused_with_the_bytes(narrow: Started) -> None:
    ones = bytes(8 * 10**6)
    with calling(narrow.url) as client:
        answer = client.post(f"/matmul?{LONG}", content=ones, headers=RAW | {"Prefer": "respond-async"})
        status, headers, body, _ = expecting(narrow.url, "m=1700&n=1700&k=1700", 8 * 1700**2)
        told = json.loads(body)
        assert (status, told["code"]) == (503, "no_room")
        assert told["size"] > told["limit"] - 12 * 10**6
        assert int(headers["retry-after"]) == told["retry_after"]
        empty(client, [answer.headers["Location"]])
        bounds = client.get("/limits").json()
        assert bounds["slab_bytes"] >= 38 * 10**6
        assert bounds["lent_bytes"] <= bounds["slab_bytes"]
        assert all_given_back(client)
        assert {device["id"] for device in bounds["devices"]} == {"opencl:0"}
