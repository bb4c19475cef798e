"""The client of a running service: `Client`, what it answers, and its errors. Standard library and NumPy only."""

from __future__ import annotations

from app.client.answers import (
    Accuracy,
    Baseline,
    Best,
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
    Want,
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
