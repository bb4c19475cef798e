"""Folders that are still there after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, if they are missing, and have their names on disk; raises OSError.

    A committed transaction is lost if the folder's own name is: SQLite syncs the folder of its files, and none above.
    """
    above = folder.parent
    if folder.is_dir() or above == folder:
        return
    make_folder(above)
    folder.mkdir(exist_ok=True)
    _sync(above)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
