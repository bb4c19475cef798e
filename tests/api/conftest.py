"""A service in a process of its own, on the OpenCL device, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from app.cli.spawn import Started, started
from tests.support.api.http_client import calling
from tests.support.api.request_bodies import MANY, MAX_BODY, QUOTA
from tests.support.started_services import settled


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("live")
    limits = {"max_body_bytes": str(MAX_BODY), "slab_bytes": str(2**27), "jobs": "8"}
    limits |= {"resident_bytes": str(QUOTA), "resident_count": str(MANY)}
    with settled(folder, shared_memory="on", **limits) as running:
        yield running


@pytest.fixture
def client(live: Started) -> Iterator[httpx.Client]:
    with calling(live.url) as client:
        yield client


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that has no device, and all its settings as they are by default."""
    with started(tmp_path_factory.mktemp("bare"), devices="none") as running:
        yield running.url
