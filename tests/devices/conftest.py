from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import childwork
import pytest
from childmaking import Making

from app.devices.lease import Lease
from app.devices.process import Worker

pytest.register_assert_rewrite("contract", "lifetimes", "devicework")


@pytest.fixture
def lease() -> Iterator[Lease]:
    lease = Lease()
    yield lease
    lease.close()


@pytest.fixture
def make(lease: Lease) -> Iterator[Making]:
    children: list[Worker] = []

    def make(setup: Callable[..., Any] = childwork.hold, *arguments: Any, **options: Any) -> Worker:
        arguments = arguments or ("state",) if setup is childwork.hold else arguments
        children.append(Worker("the child", setup, arguments, lease=lease, **options))
        return children[-1]

    yield make
    for child in children:
        child.close()
