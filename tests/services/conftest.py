"""A whole service, opened in this process on the OpenCL device, with its data in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opening import settings

from app.main import opened
from app.services.service import Service
from app.tuning import budget


@pytest.fixture(scope="session", autouse=True)
def short_finals() -> Iterator[None]:
    """Have finals end sooner where the budget has time for more: how sure a figure is, is another test's matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "FINALS", (0.3, 1.0))
        yield


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with opened(settings(tmp_path_factory.mktemp("service")), "the tests") as service:
        yield service
