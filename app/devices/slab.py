"""Host memory shared with the children: request bodies land in it, devices read from it and write into it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from bisect import insort
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from app.errors import NoRoom, TooLarge

_PAGE: Final = 4096
_GRAIN: Final = 2**18  # bytes whose backing is remembered together
_AT_ONCE: Final = 128  # grains that the system is asked for in one call
_ENTERED: Final = 2**17  # bytes entered in one call, while which no other thread's memory can grow
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14


@dataclass(frozen=True, slots=True, order=True)
class SlabRegion:
    """Whole pages of the slab, lent to one user."""

    offset: int
    nbytes: int


class Slab:
    """One piece of shared memory without a name, lent in regions of whole pages, first fit; safe from any thread.

    Bytes that were never lent take no memory. A region is backed in full before it is lent, so that touching it
    cannot fail later: a sparse page that cannot be had is a SIGBUS. Where there is no room, `give_way` is asked to make
    some for so many bytes, as long as it says that it has released something.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = _pages(nbytes)
        self.fd = os.memfd_create("tilewise-slab")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._advise = ctypes.CDLL(None).madvise  # without the interpreter's lock, which mmap's own keeps
        self._lock, self._finding = threading.Lock(), threading.Lock()
        self._free = [SlabRegion(0, self.nbytes)]
        self._lent: set[SlabRegion] = set()
        self._backed = bytearray(-(-self.nbytes // _GRAIN))  # by grains: 1 where the system has found the pages
        self.give_way: Callable[[int], bool] = _never

    @property
    def lent_bytes(self) -> int:
        """Bytes that are lent now."""
        with self._lock:
            return sum(region.nbytes for region in self._lent)

    def lend(self, nbytes: int, *, backed: bool = True) -> SlabRegion:
        """Lend at least `nbytes`; raises TooLarge where that can never fit, NoRoom where it does not fit now.

        With `backed` False that takes no time, and whoever borrows has `back` called before any byte is touched.
        """
        size = _pages(nbytes)
        if size > self.nbytes:
            raise TooLarge(f"{nbytes} bytes are more than the {self.nbytes} there are", limit=self.nbytes, size=nbytes)
        while True:
            try:
                region = self._take(size, nbytes)
                return self._lent_backed(region) if backed else region
            except NoRoom:
                if not self.give_way(size):
                    raise

    def is_fresh(self, region: SlabRegion) -> bool:
        """Whether pages of a region are still to be found."""
        return self._backed.find(0, *_grains(region)) >= 0

    def hole(self, nbytes: int, given_back: Iterable[SlabRegion] = ()) -> SlabRegion | None:
        """Where so many bytes would fit now, if some regions that are lent were given back."""
        with self._lock:
            holes = _merged(sorted([*self._free, *given_back]))
        return next((hole for hole in holes if hole.nbytes >= _pages(nbytes)), None)

    def room(self, nbytes: int) -> int:
        """Bytes that could be lent now in regions for so many bytes each."""
        size = _pages(nbytes)
        with self._lock:
            return sum(hole.nbytes // size * size for hole in self._free)

    def _take(self, size: int, nbytes: int) -> SlabRegion:
        with self._lock:
            hole = next((hole for hole in self._free if hole.nbytes >= size), None)
            if hole is None:
                raise NoRoom(f"{nbytes} bytes do not fit beside what is lent", limit=self.nbytes, size=nbytes)
            region = SlabRegion(hole.offset, size)
            self._free.remove(hole)
            if hole.nbytes > size:
                insort(self._free, SlabRegion(hole.offset + size, hole.nbytes - size))
            self._lent.add(region)
        return region

    def release(self, region: SlabRegion) -> None:
        """Take a region back; raises ValueError where it is not lent."""
        with self._lock:
            if region not in self._lent:
                raise ValueError(f"{region} is not lent")
            self._lent.remove(region)
            insort(self._free, region)
            self._free = _merged(self._free)

    def view(self, region: SlabRegion) -> memoryview:
        """Give the region's bytes, writable."""
        return memoryview(self._map)[region.offset : region.offset + region.nbytes]

    def close(self) -> None:
        """Give the memory back; views that somebody still holds stay readable until they are gone."""
        with suppress(BufferError):  # a view is still alive: the last one takes the mapping with it
            self._map.close()
        os.close(self.fd)

    def back(self, region: SlabRegion) -> None:
        """Make the system find a lent region's pages now; raises NoRoom where it has none.

        Without the lock, for others need not wait for that, but one at a time: the system clears pages, and would take
        every processor for that.
        """
        first, last = _grains(region)
        fresh: list[int] = []
        while (at := self._backed.find(0, first, last)) >= 0:
            found = self._backed.find(1, at, last)
            end = min(at + _AT_ONCE, last if found < 0 else found)
            try:
                with self._finding:
                    self._find(at * _GRAIN, min(end * _GRAIN, self.nbytes) - at * _GRAIN)
            except OSError as error:
                facts = {"limit": sum(self._backed) * _GRAIN, "size": region.nbytes}
                self._unback(region, fresh)
                if error.errno not in {errno.ENOSPC, errno.ENOMEM}:
                    raise
                raise NoRoom(f"the host has no memory for {region.nbytes} bytes now", **facts) from error
            self._backed[at:end] = b"\1" * (end - at)
            fresh += range(at, end)

    def _find(self, start: int, nbytes: int) -> None:
        """Have pages found, and entered in this process's own table; raises OSError where there are none.

        Else whoever touches them first is interrupted for each: the event loop, 50,000 times a second while bodies
        land. Where the system knows no such advice they are entered so.
        """
        os.posix_fallocate(self.fd, start, nbytes)
        for at in range(start, start + nbytes, _ENTERED):
            size = min(_ENTERED, start + nbytes - at)
            self._advise(ctypes.c_void_p(self._address + at), ctypes.c_size_t(size), _POPULATE_WRITE)

    def _lent_backed(self, region: SlabRegion) -> SlabRegion:
        try:
            self.back(region)
        except BaseException:
            self.release(region)
            raise
        return region

    def _unback(self, region: SlabRegion, grains: Iterable[int]) -> None:
        """Give the system back the grains that are the region's alone: it has not enough for all of them."""
        for grain in grains:
            start = grain * _GRAIN
            if region.offset <= start and start + _GRAIN <= region.offset + region.nbytes:
                self._map.madvise(mmap.MADV_REMOVE, start, _GRAIN)
                self._backed[grain] = 0


def _grains(region: SlabRegion) -> tuple[int, int]:
    """The first grain of a region, and the one after its last."""
    return region.offset // _GRAIN, -(-(region.offset + region.nbytes) // _GRAIN)


def attach(fd: int, nbytes: int) -> memoryview:
    """Map a slab that another process made; writable."""
    return memoryview(mmap.mmap(fd, nbytes))


def _never(nbytes: int) -> bool:
    del nbytes
    return False


def _pages(nbytes: int) -> int:
    return max(1, -(-nbytes // _PAGE)) * _PAGE


def _merged(holes: list[SlabRegion]) -> list[SlabRegion]:
    merged: list[SlabRegion] = []
    for hole in holes:
        if merged and merged[-1].offset + merged[-1].nbytes == hole.offset:
            hole = SlabRegion(merged[-1].offset, merged.pop().nbytes + hole.nbytes)  # noqa: PLW2901 - it grows
        merged.append(hole)
    return merged
