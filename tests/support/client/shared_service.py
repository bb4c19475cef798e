"""The service that the tests of the client share."""

from __future__ import annotations

from dataclasses import dataclass

from app.cli.spawn import Started


@dataclass(frozen=True)
class Served:
    """A service that is ready: its address, the same on a Unix socket, and the process."""

    url: str
    unix: str
    started: Started
