"""The command line: tilewise serve, demo, tune, best, matmul, devices, migrate."""

from __future__ import annotations

from app.cli.commands import main

__all__ = ["main"]
