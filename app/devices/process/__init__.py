"""Supervised children: they run any function handed to them, under deadlines, and know nothing of devices."""

from __future__ import annotations

from app.devices.process.begun import Begun
from app.devices.process.child import Child
from app.devices.process.link import Link
from app.devices.process.stop import GLANCE, NEVER, Stop, Stopped, Until, never

__all__ = ["GLANCE", "NEVER", "Begun", "Child", "Link", "Stop", "Stopped", "Until", "never"]
