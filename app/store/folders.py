"""Folders that are still there after a power cut, and that nobody else writes to."""

from __future__ import annotations

import os
import stat
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
    sync_folder(above)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_private(folder: Path) -> None:
    """Refuse a folder that strangers own or may write to: what they put there would run as us; raises PermissionError.

    The groups of the process are its own: a volume of Kubernetes belongs to root and to one of them.
    """
    found = folder.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        raise PermissionError(f"the folder {folder} belongs to another user, number {found.st_uid}")
    strangers = stat.S_IWOTH | (0 if found.st_gid in {os.getegid(), *os.getgroups()} else stat.S_IWGRP)
    if found.st_mode & strangers:
        raise PermissionError(f"others may write to the folder {folder}: take that from them with chmod go-w")
