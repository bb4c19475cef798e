"""What tests have a serving child do in place of making products together."""

from __future__ import annotations

from app.devices.fleet import Held
from app.devices.process import Link
from app.errors import LaunchFailed
from app.worker.serving.multiply import Order, Spent
from kernels.launch import Launch


def fail(_held: Held, _link: Link, orders: tuple[Order, ...], launch: Launch) -> Spent:
    """Fail as a device might."""
    raise LaunchFailed(f"{len(orders)} products of {launch.kernel} were too many", fatal=False)
