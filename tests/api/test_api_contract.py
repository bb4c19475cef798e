"""The service against its own OpenAPI document, and under many callers at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started
from tests.support.waiting import until

_RAW = {"Content-Type": "application/octet-stream"}
_CALLERS, _SECONDS = 64, 4.0
# CPython 3.11's parser fails where memory is collected while it works (python/cpython#106905), and hypothesis has it
# parse a lot from deep down: this process is short enough to need no collector.
_PROGRAM = "import gc; gc.disable(); from schemathesis.cli import schemathesis; schemathesis()"


def cancel_everything(url: str) -> None:
    """Leave no job to the tests that follow."""
    unended = [
        job
        for state in ("queued", "running", "cancelling")
        for job in httpx.get(f"{url}/jobs?state={state}").json()["jobs"]
    ]
    for job in unended:
        httpx.delete(f"{url}/jobs/{job['id']}", timeout=30)
    until(lambda: not httpx.get(f"{url}/jobs?state=running").json()["jobs"], 60, each=0.1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_schemathesis_finds_nothing(live: Started, tmp_path: Path) -> None:
    config = Path(__file__).with_name("schemathesis.toml")
    document = f"{live.url}/openapi.json"
    command: list[str | Path] = [sys.executable, "-c", _PROGRAM, "--config-file", config, "run", document]
    options = ["--max-examples", "3", "--workers", "2", "--no-color", "--request-timeout", "30"]
    options += ["--exclude-path-regex", "/cordon$"]  # it would take the device from all that follows
    try:
        ran = subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=360, check=False
        )
    finally:
        cancel_everything(live.url)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in live.log.read_text()


async def _multiply(client: httpx.AsyncClient, rng: np.random.Generator) -> httpx.Response:
    m, n, k = (int(size) for size in rng.integers(1, 48, 3))
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    body = a.tobytes() + b.tobytes()
    answer = await client.post("/matmul", params={"m": m, "n": n, "k": k}, content=body, headers=_RAW)
    if answer.status_code == 200:
        c = np.frombuffer(answer.content, np.float32).reshape(m, n)
        np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    return answer


async def _ask(client: httpx.AsyncClient, rng: np.random.Generator) -> httpx.Response:
    sizes = [int(size) for size in rng.integers(1, 200, 3)]
    answer = await client.get("/best-config", params=dict(zip("mnk", sizes, strict=True)))
    assert [answer.json()["problem"][name] for name in "mnk"] == sizes
    return answer


async def _tune(client: httpx.AsyncClient, rng: np.random.Generator) -> httpx.Response:
    shape = {"m": int(rng.integers(1, 40)), "n": 8, "k": 8}
    return await client.post("/tune", json={"shapes": [shape], "budget": {"trials": 2}})


async def _caller(client: httpx.AsyncClient, seed: int, latest: float) -> Counter[int]:
    rng, seen = np.random.default_rng(seed), Counter[int]()
    while time.monotonic() < latest:
        act = (_multiply, _ask, _tune)[int(rng.choice(3, p=[0.45, 0.5, 0.05]))]
        answer = await act(client, rng)
        seen[answer.status_code] += 1
        if answer.status_code not in {200, 202}:
            assert answer.status_code in {429, 503}, answer.text
            assert answer.headers["retry-after"]
            await asyncio.sleep(0.05)
    return seen


async def _crowd(url: str) -> Counter[int]:
    limits = httpx.Limits(max_connections=_CALLERS, max_keepalive_connections=_CALLERS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        until = time.monotonic() + _SECONDS
        seen = await asyncio.gather(*(_caller(client, seed, until) for seed in range(_CALLERS)))
    return sum(seen, Counter[int]())


@pytest.mark.slow
def test_64_callers_mixing_everything_get_right_products_and_no_error(live: Started) -> None:
    try:
        seen = asyncio.run(_crowd(live.url))
    finally:
        cancel_everything(live.url)
    assert seen[200] > _CALLERS
    log = live.log.read_text()
    assert "Traceback" not in log
    assert "locked" not in log
