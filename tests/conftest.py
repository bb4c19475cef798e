"""What all tests share: binaries that services compile are compiled once in a run, whichever worker asks first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_dir_of_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder inside the run's own
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWISE_CACHE_DIR", str(folder / "compiled"))
        yield
