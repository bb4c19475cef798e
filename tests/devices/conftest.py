from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.devices.lease import Lease
from app.devices.process import Worker
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making

pytest.register_assert_rewrite(
    "tests.support.devices.backend_contract",
    "tests.support.devices.device_functions",
    "tests.support.devices.sketch_contract",
)


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
