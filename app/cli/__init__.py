"""The command line: tilewise serve, demo, tune, best, matmul, export, replay, devices, migrate."""

from __future__ import annotations

from app.cli.commands import main

__all__ = ["main"]
