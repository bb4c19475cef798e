"""Debian's Chromium, driven by Playwright, and a page that fails its test for anything a person would not see."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

from app.cli.spawn import Started, started
from tests.support.api.service_in_process import running
from tests.support.services.replayed_device import fill, replayed_devices
from tests.support.started_services import compiling_alone, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass
class Watched:
    """A page and what went wrong on it; `allowed` are the statuses from 400 on that its test brings about."""

    page: Page
    url: str
    allowed: set[int] = field(default_factory=set)
    silent: bool = False
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        host = urlsplit(self.url).netloc
        self.page.on("console", lambda said: self._said(said.type, said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        self.page.on("request", lambda asked: self._asked(asked.url, host))
        self.page.on("response", lambda answer: self._answered(answer.status, answer.url))

    def _said(self, kind: str, text: str) -> None:
        expected = self.silent or any(f"status of {status} " in text for status in self.allowed)
        if kind in {"error", "warning"} and not expected:
            self.wrong.append(f"console: {text}")

    def _asked(self, url: str, host: str) -> None:
        if urlsplit(url).netloc != host:
            self.wrong.append(f"a request to another host: {url}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 400 and status not in self.allowed:
            self.wrong.append(f"{status}: {url}")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with settled(tmp_path_factory.mktemp("pages")) as running:
        yield running


@pytest.fixture(scope="session")
def tuned(service: Started) -> Started:
    """The service, with a best, its trials and a miss to show."""
    body = {"shapes": ["64x48x32"], "budget": {"trials": 12}, "kernels": ["naive", "tiled"]}
    answer = httpx.post(f"{service.url}/tune", json=body, headers={"Prefer": "wait=60"}, timeout=90)
    assert answer.json()["state"] == "succeeded", answer.text
    lines = b"32x32x32 float32\n48x32x32 float32\n"
    headers = {"Content-Type": "application/octet-stream"}
    assert httpx.post(f"{service.url}/workloads?name=two", content=lines, headers=headers).is_success
    return service


@pytest.fixture(scope="session")
def deviceless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a service without devices is."""
    with started(tmp_path_factory.mktemp("deviceless"), devices="none") as running:
        yield running.url


@pytest.fixture(scope="session")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a service is whose device and stored trials are recorded ones."""
    folder, cache = tmp_path_factory.mktemp("replayed"), Path(os.environ["TILEWISE_CACHE_DIR"])
    fill(folder / "tilewise.db")
    with ExitStack() as stack:
        with compiling_alone():
            service = stack.enter_context(running(folder, replayed_devices(cache), cache_dir=cache))
        yield f"http://127.0.0.1:{service.port}"


@pytest.fixture
def watched(chromium: Browser, service: Started) -> Iterator[Watched]:
    yield from watching(chromium, service.url)


def watching(chromium: Browser, url: str, **context: object) -> Iterator[Watched]:
    """A page of a fresh session, opened at `url`, whose faults fail the test once it is done with it."""
    with chromium.new_context(**context) as session:  # type: ignore[arg-type]
        one = Watched(session.new_page(), url)
        one.page.set_default_timeout(60_000)
        yield one
    assert not one.wrong
