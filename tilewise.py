"""The client under the name people import: `from tilewise import Client`."""

from __future__ import annotations
