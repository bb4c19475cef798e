"""The client of a running service: `Client`, what it answers, and its errors. Standard library and NumPy only."""

from __future__ import annotations

from app.client.answers import (
    Accuracy,
    Baseline,
    Best,
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
    Winner,
)
from app.client.client import Client
from app.client.transport import ClientError, UnreachableError

__all__ = [
    "Accuracy",
    "Baseline",
    "Best",
    "Client",
    "ClientError",
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
    "Winner",
]
