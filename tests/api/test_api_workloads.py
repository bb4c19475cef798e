"""Workloads over HTTP and by the client: files counted, kept once, tuned by time at stake, reported on, forgotten."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import httpx
import pytest

from app.cli.spawn import Started
from benchmarks.workloads.trace import write_trace
from tests.support.started_services import settled
from tilewise import AsyncClient, Client, ClientError, InvalidWorkload, Problem, UnknownWorkload

_SHAPES = b"48x40x32 * 200\n24x16x8 nt * 3\n16x16x16 f64\n"


@pytest.mark.slow
def test_a_workload_is_kept_tuned_and_reported_on(live: Started, client: httpx.Client) -> None:
    with Client(live.url) as tilewise:
        made = tilewise.create_workload(_SHAPES, name="mine")
        assert (made.source, made.shapes, made.calls, made.name) == ("shapes", 3, 204, "mine")
        assert (made.before, made.after, made.job, made.covered) == (None, None, None, 0.0)
        assert tilewise.create_workload(_SHAPES, name="mine").id == made.id  # the same is kept once
        begun = tilewise.tune_workload(made.id, 4.0)
        assert begun.job is not None
        job = tilewise.wait(begun.job, timeout=120)
        assert job.state == "succeeded", (job.error, job.result)
        found = tilewise.workload(made.id)
        first = found.products[0]
        assert first.problem == Problem(48, 40, 32)  # most time is at stake there, so it is tuned whatever else is
        assert first.winner is not None
        assert (first.before is None) == (first.reason is not None)  # a slow host has no time for the default
        assert (found.before is None) == (found.covered == 0)
        assert "your program's products: " in found.summary
        assert any(one.id == made.id for one in tilewise.workloads(limit=1000))
        tilewise.delete_workload(made.id)
        with pytest.raises(UnknownWorkload):
            tilewise.workload(made.id)
    spec = client.get(f"/jobs/{begun.job}").json()
    assert spec["progress"]["budget_seconds"] == pytest.approx(4.0)


def test_a_trace_comes_in_any_of_its_forms(live: Started, client: httpx.Client, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, layers=2, steps=3)
    data = path.read_bytes()

    async def by_path() -> str:
        async with AsyncClient(live.url) as tilewise:
            return (await tilewise.create_workload(path)).id

    first = client.post("/workloads", params={"name": "trace.json"}, content=data)
    assert first.status_code == 201
    assert first.headers["Location"] == f"/workloads/{first.json()['id']}"
    assert first.json()["source"] == "torch.profiler"
    assert first.json()["calls"] == 6 * 2 * 3
    assert first.json()["products"][0]["incumbent"]["name"].startswith("nvjet")
    packed = gzip.compress(data)
    for headers in ({}, {"Content-Encoding": "gzip"}):
        again = client.post("/workloads", params={"name": "trace.json"}, content=packed, headers=headers)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert asyncio.run(by_path()) == first.json()["id"]


def test_pages_of_workloads_follow_each_other(client: httpx.Client) -> None:
    ids = [client.post("/workloads", content=f"{size}\n".encode()).json()["id"] for size in (31, 32, 33)]
    page = client.get("/workloads", params={"limit": 2}).json()
    assert [one["id"] for one in page["workloads"]] == ids[:0:-1]
    following = client.get("/workloads", params={"limit": 2, "cursor": page["next"]}).json()
    assert following["workloads"][0]["id"] == ids[0]


@pytest.mark.parametrize("content", [b"", b"512x512\n", b"{", b"[" * 300, b"\x1f\x8b\x08", b"\x08\x07:\xff", b"\0"])
def test_what_cannot_be_read_is_refused_and_not_kept(client: httpx.Client, content: bytes) -> None:
    before = client.get("/workloads", params={"limit": 1}).json()
    refused = client.post("/workloads", content=content)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_workload")
    assert client.get("/workloads", params={"limit": 1}).json() == before


def test_places_of_faults_are_told_to_the_client(live: Started) -> None:
    with Client(live.url) as tilewise, pytest.raises(InvalidWorkload) as refused:
        tilewise.create_workload(b"64\n64x\n")
    assert (refused.value.body["line"], refused.value.body["column"]) == (2, 1)


@pytest.mark.parametrize("query", ["tune=0", "tune=abc", "source=excel", "free=0", "m=3", "dtype=int8"])
def test_parameters_that_are_off_are_refused(client: httpx.Client, query: str) -> None:
    assert client.post(f"/workloads?{query}", content=b"64\n").json()["code"] == "invalid"


def test_a_budget_that_suffices_for_nothing_is_refused_with_what_is_needed(client: httpx.Client) -> None:
    refused = client.post("/workloads?tune=0.01", content=b"512x512x512 float64 * 9\n").json()
    assert refused["code"] == "budget_too_small"
    assert refused["needed_seconds"] >= 1


@pytest.mark.slow
def test_workloads_belong_to_whoever_sent_them(tmp_path: Path) -> None:
    admin = tmp_path / "admin"
    admin.write_text("admin-key-of-the-test")
    with settled(tmp_path / "data", key=admin.read_text(), auth="keys", admin_key_file=str(admin)) as running:
        with Client(running.url, key=admin.read_text()) as owner:
            keys = [owner.create_key(name, scopes=["read", "tune"]).key for name in ("ann", "bob")]
            reader = owner.create_key("ann", scopes=["read"]).key
        with (
            Client(running.url, key=keys[0]) as ann,
            Client(running.url, key=keys[1]) as bob,
            Client(running.url, key=reader) as looker,
        ):
            made = ann.create_workload(b"64\n")
            assert [one.id for one in ann.workloads()] == [made.id]
            assert bob.workloads() == []
            for call in (bob.workload, bob.delete_workload):
                with pytest.raises(UnknownWorkload):
                    call(made.id)
            assert bob.create_workload(b"64\n").id != made.id
            with pytest.raises(ClientError) as refused:
                looker.create_workload(b"64\n")
            assert refused.value.code == "forbidden"


@pytest.mark.slow
def test_a_ladder_has_measured_losses_and_says_what_has_none(live: Started, client: httpx.Client) -> None:
    with Client(live.url) as tilewise:
        job = tilewise.tune(["9x21x15", "18x21x15"], trials=8, seconds=6.0, wait=120.0)
        assert job.state == "succeeded", (job.error, job.result)
        found = tilewise.ladder(21, 15, m_from=2, m_to=30, loss=5.0)
    assert (found.rungs[0].m_from, found.rungs[-1].m_to) == (2, 30)
    assert sum(rung.tuned for rung in found.rungs) in {1, 2}  # a slow host has no time for the second
    assert sum(rung.tuned + rung.untuned for rung in found.rungs) == 29
    for rung in found.rungs:
        assert 0 <= rung.worst_loss <= 5
        assert rung.worst_loss_at in {9, 18}
        assert (rung.untuned_reason is None) == (rung.untuned == 0)
    missing = client.get("/best-config/ladder?n=22&k=15").json()
    assert missing["code"] == "not_tuned"
    assert client.get("/best-config/ladder?n=21&k=15&m_from=9&m_to=2").json()["code"] == "invalid"
