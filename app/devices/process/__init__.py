"""Supervised children: they run any function handed to them, under deadlines, and know nothing of devices."""

from __future__ import annotations

from app.devices.process.pending_call import Begun
from app.devices.process.stop import GLANCE, NEVER, Stop, Stopped, Until, never
from app.devices.process.worker import Child
from app.devices.process.worker_main import Link

__all__ = ["GLANCE", "NEVER", "Begun", "Child", "Link", "Stop", "Stopped", "Until", "never"]
