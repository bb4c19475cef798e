"""One service for all that speaks to a real one: on a port, on a Unix socket, and through shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from served import Served

from app.cli.spawn import started
from tilewise import Client


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with TemporaryDirectory(prefix="tw") as folder:  # a Unix socket's path is short
        path = Path(folder) / "tilewise.sock"
        data = tmp_path_factory.mktemp("service")
        with started(data, devices="opencl", uds=str(path), shared_memory="on") as running:
            with Client(running.url) as waiting:
                assert waiting.ready(wait=90), running.log.read_text()
            yield Served(running.url, f"unix://{path}", running)
