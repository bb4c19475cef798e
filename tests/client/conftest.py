"""One service for all that speaks to a real one: on a port, on a Unix socket, and through shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.client.shared_service import Served
from tests.support.started_services import settled


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with TemporaryDirectory(prefix="tw") as folder:  # a Unix socket's path is short
        path = Path(folder) / "tilewise.sock"
        data = tmp_path_factory.mktemp("service")
        with settled(data, uds=str(path), shared_memory="on") as running:
            yield Served(running.url, f"unix://{path}", running)
