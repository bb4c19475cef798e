"""How these tests open a service."""

from __future__ import annotations

from pathlib import Path

from app.settings import Settings


def settings(folder: Path) -> Settings:
    """Settings of a service that keeps everything in one folder."""
    return Settings(data_dir=folder, devices="opencl", slab_bytes=2**26, max_body_bytes=2**25)
