"""What a worker process may do to the host: files by Landlock, system calls by a seccomp filter."""

from __future__ import annotations

from app.devices.sandbox.policy import Sandbox, of_discovery, of_platform
from app.devices.sandbox.support import PARTS, Part, Support, support

__all__ = ["PARTS", "Part", "Sandbox", "Support", "of_discovery", "of_platform", "support"]
