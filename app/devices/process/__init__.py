"""Supervised children: they run any function handed to them, under deadlines, and know nothing of devices."""

from __future__ import annotations

from app.devices.process.begun import Begun
from app.devices.process.child import Child
from app.devices.process.link import Link

__all__ = ["Begun", "Child", "Link"]
