"""A whole service, opened in this process on the OpenCL device, with its data in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opening import settings

from app.main import Service, opened


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with opened(settings(tmp_path_factory.mktemp("service")), "the tests") as service:
        yield service
