"""Opaque results of other tuners: shared between processes, with entity tags, expiry and bounds."""

from __future__ import annotations

import subprocess
import sys
import time

import httpx
import pytest

from app.cli.spawn import Started
from tilewise import Client

_HIT = "import sys; from tilewise import Client; print(Client(sys.argv[1]).cache_get('shared', 'one'))"


@pytest.mark.rotating
def test_what_one_process_puts_a_second_one_hits(live: Started) -> None:
    with Client(live.url) as tilewise:
        assert tilewise.cache_get("shared", "one") is None
        tilewise.cache_put("shared", "one", '{"BM": 16}')
        told = subprocess.run([sys.executable, "-c", _HIT, live.url], capture_output=True, text=True, check=True)
        assert told.stdout.strip() == "b'{\"BM\": 16}'"
        tilewise.cache_put("shared", "two", b"\0\xff")
        assert tilewise.cache_get("shared", "two") == b"\0\xff"
        found = tilewise.cache_list("shared", values=True)
        assert [(one.key, one.value) for one in found] == [("two", None), ("one", '{"BM": 16}')]
        tilewise.cache_delete("shared", "one")
        assert tilewise.cache_get("shared", "one") is None


def test_conditions_are_held_by_entity_tags(client: httpx.Client) -> None:
    made = client.put("/cache/tags/k", json=[1], headers={"If-None-Match": "*"})
    assert made.status_code == 201
    assert client.put("/cache/tags/k", json=[2], headers={"If-None-Match": "*"}).json()["code"] == "precondition_failed"
    assert client.put("/cache/tags/k", json=[2], headers={"If-Match": '"other"'}).status_code == 412
    for none in (f"W/{made.headers['ETag']}", '*, "other"'):  # a weak tag is no strong one, and * stands alone
        assert client.put("/cache/tags/k", json=[2], headers={"If-Match": none}).status_code == 412, none
    assert client.put("/cache/tags/k", json=[2], headers={"If-Match": made.headers["ETag"]}).status_code == 200
    now = client.get("/cache/tags/k")
    assert (now.json(), now.headers["Content-Type"]) == ([2], "application/json")
    for tag in (now.headers["ETag"], f"W/{now.headers['ETag']}", "*"):
        assert client.get("/cache/tags/k", headers={"If-None-Match": tag}).status_code == 304


def test_an_entry_ends_with_its_time(client: httpx.Client) -> None:
    assert client.put("/cache/times/k?ttl=0.2", json=1).status_code == 201
    time.sleep(0.3)
    assert client.get("/cache/times/k").json()["code"] == "unknown_cache_entry"
    assert client.get("/cache/times").json()["entries"] == []


def test_pages_of_entries_follow_each_other(client: httpx.Client) -> None:
    for number in range(3):
        client.put(f"/cache/pages/{number}", json=number)
    page = client.get("/cache/pages?limit=2").json()
    assert [one["key"] for one in page["entries"]] == ["2", "1"]
    rest = client.get("/cache/pages", params={"limit": 2, "cursor": page["next"]}).json()
    assert [one["key"] for one in rest["entries"]] == ["0"]


@pytest.mark.parametrize(
    ("path", "body", "media", "code"),
    [
        ("/cache/bad/k", b"{", "application/json", "malformed"),
        ("/cache/bad/k", b"x" * 65537, "application/octet-stream", "body_too_large"),
        ("/cache/bad/k", b"x", "text/html", "unsupported_media_type"),
        ("/cache/bad/a%20b", b"1", "application/json", "invalid"),
        ("/cache/bad/k?ttl=0", b"1", "application/json", "invalid"),
    ],
)
def test_what_cannot_be_kept_is_refused(client: httpx.Client, path: str, body: bytes, media: str, code: str) -> None:
    assert client.put(path, content=body, headers={"Content-Type": media}).json()["code"] == code
    assert client.get("/cache/bad").json()["entries"] == []
