"""Children for the tests of processes."""

from __future__ import annotations

from collections.abc import Callable

from app.devices.process import Worker

Making = Callable[..., Worker]
