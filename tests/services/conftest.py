"""A whole service, opened in this process on the OpenCL device, with its data in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.main import Service, opened
from app.settings import Settings


def settings(folder: Path) -> Settings:
    """Settings of a service that keeps everything in one folder."""
    return Settings(data_dir=folder, devices="opencl", slab_bytes=2**26, max_body_bytes=2**25)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with opened(settings(tmp_path_factory.mktemp("service")), "the tests") as service:
        yield service
