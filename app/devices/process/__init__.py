"""Supervised children: they run any function handed to them, under deadlines, and know nothing of devices."""

from __future__ import annotations

from app.devices.process.call import PendingCall
from app.devices.process.device_worker import DeviceWorker
from app.devices.process.worker import Worker
from app.devices.process.worker_main import GLANCE, NEVER, CallLimit, CallStopped, Until, WorkerLink, never

__all__ = [
    "GLANCE",
    "NEVER",
    "CallLimit",
    "CallStopped",
    "DeviceWorker",
    "PendingCall",
    "Until",
    "Worker",
    "WorkerLink",
    "never",
]
