"""What tests have a serving child do in place of making products together."""

from __future__ import annotations

from app.devices.backend import WorkerContext
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels.launch import Launch


def fail(
    _held: WorkerContext, _link: WorkerLink, orders: tuple[MultiplyRequest, ...], launch: Launch
) -> MultiplyResult:
    """Fail as a device might."""
    raise LaunchFailed(f"{len(orders)} products of {launch.kernel} were too many", fatal=False)
