"""A whole service, opened in this process on the OpenCL device, with its data in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.main import opened
from app.services.service import Service
from tests.support.services.service_settings import settings
from tests.support.services.tuning_fixture import brief_finals


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Iterator[None]:
    """Have finals end after few rounds, however long they take: how sure a figure is, is another test's matter."""
    with brief_finals():
        yield


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with opened(settings(tmp_path_factory.mktemp("service")), "the tests") as service:
        yield service
