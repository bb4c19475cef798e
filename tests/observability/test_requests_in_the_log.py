"""A running service's log and its audit log: the id of a request is in its answer and in every line of it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.started_services import settled
from tests.support.waiting import until

KEY, TRACE, SPAN = "operators-own-key", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TUNE = {"shapes": ["24x25x26"], "kernels": ["naive"], "budget": {"trials": 1, "seconds": 30}}


@dataclass(frozen=True)
class Logged:
    """A service that keeps a log in JSON."""

    url: str
    data: Path

    def client(self, key: str = KEY) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.data / "service.log").read_text().splitlines()]

    def audit(self) -> list[dict[str, Any]]:
        file = self.data / "audit.jsonl"  # made with its first line, which a thread writes
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("logged")
    (folder / "admin").write_text(KEY)
    settings = {"auth": "keys", "admin_key_file": str(folder / "admin"), "log_format": "json"}
    with settled(folder / "data", key=KEY, **settings) as running:
        yield Logged(running.url, folder / "data")


def found(read: Callable[[], list[dict[str, Any]]], request_id: str, least: int = 1) -> list[dict[str, Any]]:
    """The lines of a request, once there are so many."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in read() if line.get("request_id") == request_id]

    until(lambda: len(lines()) >= least, 60, meanwhile=lines)
    return lines()


@pytest.mark.slow
def test_an_answer_has_the_id_that_was_sent_or_one_of_its_own(service: Logged) -> None:
    with service.client() as client:
        for path, status in (("/best-config?m=8&n=8&k=8", 200), ("/nothing", 404), ("/health/live", 200)):
            answer = client.get(path, headers={"X-Request-ID": "mine/1"})
            assert (answer.status_code, answer.headers["X-Request-ID"]) == (status, "mine/1")
        made = [client.get("/health/live", headers={"X-Request-ID": sent}).headers for sent in ("a b", "x" * 129)]
        ids = {headers["X-Request-ID"] for headers in made}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


@pytest.mark.slow
def test_what_is_refused_by_its_head_or_is_no_request_has_one(service: Logged) -> None:
    with service.client("wrong") as stranger:
        answer = stranger.get("/jobs", headers={"X-Request-ID": "denied-1"})
    assert (answer.status_code, answer.headers["X-Request-ID"]) == (401, "denied-1")
    (line,) = found(service.audit, "denied-1")
    assert (line["status"], line["path"]) == (401, "/jobs")
    with wire(service) as sent:
        sent.sendall(b"GARBAGE\r\n\r\n")
        head = sent.recv(4096).partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 400")
    assert re.search(rb"\r\nx-request-id: [0-9a-f]{32}(\r|$)", head)


@pytest.mark.slow
def test_lines_of_a_tune_have_the_id_and_the_trace_of_its_request(service: Logged) -> None:
    headers = {"X-Request-ID": "tune-1", "traceparent": f"00-{TRACE}-{SPAN}-01", "Prefer": "wait=60"}
    with service.client() as client:
        answer = client.post("/tune", json=TUNE, headers=headers)
        assert answer.json()["state"] == "succeeded", answer.text
    assert answer.headers["X-Request-ID"] == "tune-1"
    lines = found(service.log, "tune-1", 2)
    assert {line["message"].split()[0] for line in lines} >= {"attempt", "saved"}
    assert {line["trace_id"] for line in lines} == {TRACE}
    assert {line["level"] for line in lines} == {"info"}
    (audited,) = found(service.audit, "tune-1")
    assert audited["job"] == answer.json()["id"]


def test_what_is_no_request_is_counted_and_told_a_few_times_with_who_sent_it(service: Logged) -> None:
    with service.client() as client:
        before = counted(client, 'tilewise_invalid_requests_total{status="400"}')
        for _ in range(40):
            with wire(service) as sent:
                sent.sendall(b"\x16\x03\x01 no request\r\n\r\n")
                assert sent.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert counted(client, 'tilewise_invalid_requests_total{status="400"}') == before + 40
    told = [line for line in service.log() if line["logger"] == "app.server.http"]
    assert 1 <= len(told) < 40
    assert told[0]["message"].startswith("127.0.0.1 is answered 400: ")


def counted(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wire(service: Logged) -> socket.socket:
    place = urlsplit(service.url)
    return socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=20)


def test_every_line_is_an_object(service: Logged) -> None:
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in service.log())
