"""What all tests share: services' binaries are compiled once in a run, and no core is busy with nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

# Several processes share each core here: a thread of OpenBLAS that has nothing to do sleeps at once, where it would
# spin for 2^26 cycles after NumPy's import and after each product. Read at NumPy's import, by children too.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


@pytest.fixture(scope="session", autouse=True)
def cache_dir_of_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder inside the run's own
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWISE_CACHE_DIR", str(folder / "compiled"))
        yield


def pytest_collection_finish() -> None:
    """Thousands of tests live to the end of the run: no collection of garbage looks through them again."""
    gc.collect()
    gc.freeze()
