"""What the host still has that the service needs: a store that commits, disk, descriptors."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from time import monotonic
from typing import Final

from app.errors import Closing, StoreFailed
from app.store.database import Database

_PROBE: Final = 30.0  # seconds between two writes that only tell whether the store can be written
_FAILING: Final = 2.0  # the same while it cannot
_LATE: Final = 10.0  # seconds that such a write may take
_FREE_BYTES: Final = 64 * 2**20  # of the data folder's disk
_FREE_FILES: Final = 256
_FREE_DESCRIPTORS: Final = 32


class StoreProbe:
    """Writes to the store now and then, in a thread: a store that is locked or hangs keeps nobody else waiting."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._began: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def fault(self) -> str | None:
        """Why nothing can be stored now; None if the last write was committed."""
        began = self._began
        if began is not None and monotonic() - began > _LATE:
            return f"a write has taken more than {_LATE:g} s"
        return self._database.fault

    def start(self) -> None:
        """Write from now on."""
        self._thread = threading.Thread(target=self._run, name="probe the store", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a write that is under way ends first, or the store is closed under it."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(_FAILING if self._is_failing() else _PROBE):
            pass

    def _is_failing(self) -> bool:
        self._began = monotonic()
        try:
            self._database.probe()
        except StoreFailed:
            return True
        except Closing:
            self._stopping.set()
        finally:
            self._began = None
        return False


def shortages(data_dir: Path) -> list[str]:
    """What is about to run out, in words."""
    return [*_of_disk(data_dir), *_of_descriptors()]


def _of_disk(data_dir: Path) -> list[str]:
    try:
        found = os.statvfs(data_dir)
    except OSError as error:
        return [f"the data folder's disk cannot be read: {error.strerror}"]
    shortages = []
    if found.f_bavail * found.f_frsize < _FREE_BYTES:
        shortages.append(f"the data folder's disk has less than {_FREE_BYTES // 2**20} MiB left")
    if found.f_files and found.f_favail < _FREE_FILES:
        shortages.append(f"the data folder's disk takes fewer than {_FREE_FILES} more files")
    return shortages


def _of_descriptors() -> list[str]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    except OSError:  # not even this one could be opened
        return ["there is no descriptor left"]
    return [f"fewer than {_FREE_DESCRIPTORS} descriptors are left"] if limit - used < _FREE_DESCRIPTORS else []
