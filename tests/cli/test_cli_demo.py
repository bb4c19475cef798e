"""What the demo asks of a host that is too slow for its usual seconds."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from app.cli.commands.demo import SECONDS, submitted
from app.cli.spawn import Started
from tilewise import BudgetTooSmall, Client, Shape

pytest_plugins = ["tests.support.cli.command_line"]


def test_a_demo_without_seconds_takes_what_a_slow_host_needs(service: Started) -> None:
    slow, said = [Shape(20480, 20480, 20480)], io.StringIO()
    with Client(service.url) as client:
        with pytest.raises(BudgetTooSmall):
            submitted(client, slow, SECONDS, Console(file=said))
        job = submitted(client, slow, None, Console(file=said))
        assert client.cancel(job.id).state in {"cancelling", "cancelled"}
    told = re.search(r"forecast to take (\d+) s here", said.getvalue())
    assert told
    assert int(told[1]) > SECONDS
