"""`placement` over HTTP, in the query, in JSON and from the clients, of a service with two devices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli import main
from benchmarks.serving.two_cpus import two_cpus
from tests.support.api.service_in_process import RAW, running
from tests.support.waiting import until
from tilewise import AsyncClient, Client, ClientError
from tilewise._matmul import parse_config

A = np.random.default_rng(1).standard_normal((1100, 96)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((96, 900)).astype(np.float32)
SIZES: dict[str, int | str] = {"m": 1100, "n": 900, "k": 96}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("placement")
    with running(folder, partial(two_cpus, cache_dir=binaries)) as service:
        yield f"http://127.0.0.1:{service.port}"


@pytest.mark.slow
def test_all_devices_are_told_with_their_tiles(url: str) -> None:
    body, headers = A.tobytes() + B.tobytes(), {"Content-Type": RAW}
    told = httpx.post(f"{url}/matmul", params={**SIZES, "placement": "all"}, content=body, headers=headers, timeout=60)
    assert told.status_code == 200, told.text
    devices = parse_config(told.headers["x-devices"])
    assert set(devices) == {"opencl:0", "opencl:1"}
    assert sum(devices.values()) == int(told.headers["x-tiles"])
    assert told.headers["x-device"] in devices
    assert np.allclose(np.frombuffer(told.content, np.float32).reshape(1100, 900), A @ B, atol=1e-4)
    alone = httpx.post(f"{url}/matmul", params={**SIZES, "placement": "one"}, content=body, headers=headers, timeout=60)
    assert not {"x-devices", "x-tiles"} & set(alone.headers)


@pytest.mark.slow
def test_a_json_body_says_it_too_and_what_is_no_placement_is_refused(url: str) -> None:
    operands = {"a": [[1.0, 2.0]], "b": [[3.0], [4.0]]}
    assert httpx.post(f"{url}/matmul", json={**operands, "placement": "all"}, timeout=60).json()["c"] == [[11.0]]
    for said in ({"placement": "both"}, {"placement": "all", "device": "opencl:1"}):
        refused = httpx.post(f"{url}/matmul", json={**operands, **said}, timeout=60)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid"), said


def test_a_job_tells_it_with_its_result(url: str) -> None:
    headers = {"Content-Type": RAW, "Prefer": "respond-async"}
    asked = httpx.post(
        f"{url}/matmul", params={**SIZES, "placement": "all"}, content=A.tobytes() + B.tobytes(), headers=headers
    )
    job = f"{url}/jobs/{asked.json()['id']}"
    until(lambda: httpx.get(job).json()["state"] == "succeeded", 60)
    made = httpx.get(job).json()["result"]
    assert sum(made["devices"].values()) == made["tiles"] > 2
    assert parse_config(httpx.get(f"{job}/result").headers["x-devices"]) == made["devices"]


def test_clients_ask_for_it(url: str) -> None:
    with Client(url) as caller:
        made = caller.product(A, B, placement="all")
        assert set(made.devices) == {"opencl:0", "opencl:1"}
        assert np.allclose(made.c, A @ B, atol=1e-4)
        assert not caller.product(A, B, placement="one").devices
        with pytest.raises(ClientError):
            caller.matmul(A, B, device="opencl:0", placement="all")

    async def asynchronously() -> None:
        async with AsyncClient(url) as other:
            later = await other.submit(A, B, placement="all")
            assert np.array_equal(await later.result(60), made.c)

    asyncio.run(asynchronously())


def test_the_command_line_asks_for_it(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", A)
    np.save(tmp_path / "b.npy", B)
    words = ("matmul", tmp_path / "a.npy", tmp_path / "b.npy", "-o", tmp_path / "c.npy", "--placement", "all")
    assert main([*map(str, words), "--json", "--url", url]) == 0
    assert set(json.loads(capsys.readouterr().out)["devices"]) == {"opencl:0", "opencl:1"}
    assert np.allclose(np.load(tmp_path / "c.npy"), A @ B, atol=1e-4)
