"""The client under the name people import: `from tilewise import Client`."""

from __future__ import annotations

from app.client import (
    Accuracy,
    Baseline,
    Best,
    Client,
    ClientError,
    Conditions,
    Device,
    Event,
    Job,
    Kernel,
    Launch,
    Problem,
    Product,
    Progress,
    Shape,
    Timing,
    Trial,
    UnreachableError,
    Want,
    Winner,
)

__all__ = [
    "Accuracy",
    "Baseline",
    "Best",
    "Client",
    "ClientError",
    "Conditions",
    "Device",
    "Event",
    "Job",
    "Kernel",
    "Launch",
    "Problem",
    "Product",
    "Progress",
    "Shape",
    "Timing",
    "Trial",
    "UnreachableError",
    "Want",
    "Winner",
]
