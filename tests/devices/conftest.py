from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.devices.backend import Backend
from app.devices.lease import Lease
from app.devices.opencl import OpenCLBackend
from app.devices.process import Worker
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making

pytest.register_assert_rewrite(
    "tests.support.devices.auxiliary_builds",
    "tests.support.devices.backend_contract",
    "tests.support.devices.comparison_contract",
    "tests.support.devices.device_functions",
    "tests.support.devices.sketch_contract",
)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def opencl(cache_dir: Path) -> Iterator[OpenCLBackend]:
    before = dict(os.environ)  # a child's own otherwise: PoCL is told where to compile by its environment
    backend = OpenCLBackend("opencl:0", cache_dir)
    yield backend
    backend.close()
    os.environ.clear()
    os.environ |= before


@pytest.fixture(scope="module")
def gpu(driver: None, cache_dir: Path) -> Iterator[Backend]:
    del driver
    cuda = pytest.importorskip("app.devices.cuda")
    backend: Backend = cuda.CudaBackend("cuda:0", cache_dir)
    yield backend
    backend.close()


@pytest.fixture
def lease() -> Iterator[Lease]:
    lease = Lease()
    yield lease
    lease.close()


@pytest.fixture
def make(lease: Lease) -> Iterator[Making]:
    children: list[Worker] = []

    def make(setup: Callable[..., Any] = child_functions.hold, *arguments: Any, **options: Any) -> Worker:
        arguments = arguments or ("state",) if setup is child_functions.hold else arguments
        children.append(Worker("the child", setup, arguments, lease=lease, **options))
        return children[-1]

    yield make
    for child in children:
        child.close()
