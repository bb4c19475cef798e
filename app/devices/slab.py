"""Host memory shared with the children: request bodies land in it, devices read from it and write into it."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from bisect import insort
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from app.errors import NoRoom, TooLarge

_PAGE: Final = 4096


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Whole pages of the slab, lent to one user."""

    offset: int
    nbytes: int


class Slab:
    """One piece of shared memory without a name, lent in regions of whole pages, first fit; safe from any thread.

    Bytes that were never lent take no memory. A region is backed in full before it is lent, so that touching it
    cannot fail later: a sparse page that cannot be had is a SIGBUS.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = _pages(nbytes)
        self.fd = os.memfd_create("tilewise-slab")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self._lock = threading.Lock()
        self._free = [Region(0, self.nbytes)]
        self._lent: set[Region] = set()
        self._backed = 0

    @property
    def lent_bytes(self) -> int:
        """Bytes that are lent now."""
        with self._lock:
            return sum(region.nbytes for region in self._lent)

    def lend(self, nbytes: int) -> Region:
        """Lend at least `nbytes`; raises TooLarge where that can never fit, NoRoom where it does not fit now."""
        size = _pages(nbytes)
        if size > self.nbytes:
            raise TooLarge(f"{nbytes} bytes are more than the {self.nbytes} there are", limit=self.nbytes, size=nbytes)
        with self._lock:
            hole = next((hole for hole in self._free if hole.nbytes >= size), None)
            if hole is None:
                raise NoRoom(f"{nbytes} bytes do not fit beside what is lent", limit=self.nbytes, size=nbytes)
            region = Region(hole.offset, size)
            self._back(region)
            self._free.remove(hole)
            if hole.nbytes > size:
                insort(self._free, Region(hole.offset + size, hole.nbytes - size))
            self._lent.add(region)
        return region

    def release(self, region: Region) -> None:
        """Take a region back; raises ValueError where it is not lent."""
        with self._lock:
            if region not in self._lent:
                raise ValueError(f"{region} is not lent")
            self._lent.remove(region)
            insort(self._free, region)
            self._free = _merged(self._free)

    def view(self, region: Region) -> memoryview:
        """Give the region's bytes, writable."""
        return memoryview(self._map)[region.offset : region.offset + region.nbytes]

    def close(self) -> None:
        """Give the memory back; views that somebody still holds stay readable until they are gone."""
        with suppress(BufferError):  # a view is still alive: the last one takes the mapping with it
            self._map.close()
        os.close(self.fd)

    def _back(self, region: Region) -> None:
        """Make the system find the pages now. First fit lends the lowest hole, so a high-water mark is enough."""
        end = region.offset + region.nbytes
        if end <= self._backed:
            return
        try:
            os.posix_fallocate(self.fd, self._backed, end - self._backed)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.ENOMEM}:
                raise
            facts = {"limit": self._backed, "size": region.nbytes}
            raise NoRoom(f"the host has no memory for {region.nbytes} bytes now", **facts) from error
        self._backed = end


def attach(fd: int, nbytes: int) -> memoryview:
    """Map a slab that another process made; writable."""
    return memoryview(mmap.mmap(fd, nbytes))


def _pages(nbytes: int) -> int:
    return max(1, -(-nbytes // _PAGE)) * _PAGE


def _merged(holes: list[Region]) -> list[Region]:
    merged: list[Region] = []
    for hole in holes:
        if merged and merged[-1].offset + merged[-1].nbytes == hole.offset:
            hole = Region(merged[-1].offset, merged.pop().nbytes + hole.nbytes)  # noqa: PLW2901 - it grows
        merged.append(hole)
    return merged
