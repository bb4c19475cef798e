"""The slab: host memory shared with the workers, into which request bodies are received and results copied."""

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
_GRAIN: Final = 2**18  # bytes that are committed together
_AT_ONCE: Final = 128  # grains committed in one call
_ENTERED: Final = 2**17  # bytes of page table entries filled in one call, during which no other thread can map memory
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, since Linux 5.14


@dataclass(frozen=True, slots=True, order=True)
class SlabRegion:
    """Whole pages of the slab, lent to one user."""

    offset: int
    nbytes: int


class Slab:
    """Anonymous shared memory, lent in regions of whole pages by first fit; safe from any thread.

    Bytes that were never lent take no memory. A region's pages are committed before it is lent, since a page that the
    system does not have is a SIGBUS later. If no gap fits, `reclaim` is called with the bytes needed for as long as it
    returns true, that is, has released a region.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = _pages(nbytes)
        self.fd = os.memfd_create("tilewise-slab")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._advise = ctypes.CDLL(None).madvise  # without the interpreter's lock, which mmap's own keeps
        self._lock, self._committing = threading.Lock(), threading.Lock()
        self._free = [SlabRegion(0, self.nbytes)]
        self._lent: set[SlabRegion] = set()
        self._committed = bytearray(-(-self.nbytes // _GRAIN))  # by grains: 1 if the pages are committed
        self._unsafe: list[tuple[threading.Event, frozenset[SlabRegion]]] = []
        self._held_back: list[tuple[threading.Event, SlabRegion]] = []
        self.reclaim: Callable[[int], bool] = _never

    @property
    def lent_bytes(self) -> int:
        """Bytes that are lent now."""
        with self._lock:
            return sum(region.nbytes for region in self._lent)

    def lend(self, nbytes: int, *, committed: bool = True) -> SlabRegion:
        """Lend at least `nbytes`; raises TooLarge if that can never fit, NoRoom if it does not fit now.

        With `committed` False it returns at once; the borrower calls `commit` before it accesses the region.
        """
        size = _pages(nbytes)
        if size > self.nbytes:
            raise TooLarge(f"{nbytes} bytes are more than the {self.nbytes} there are", limit=self.nbytes, size=nbytes)
        while True:
            try:
                region = self._take(size, nbytes)
                return self._lent_committed(region) if committed else region
            except NoRoom:
                if not self.reclaim(size):
                    raise

    def is_uncommitted(self, region: SlabRegion) -> bool:
        """Whether any page of a region is not yet committed."""
        return self._committed.find(0, *_grains(region)) >= 0

    def find_gap(self, nbytes: int, given_back: Iterable[SlabRegion] = ()) -> SlabRegion | None:
        """The first gap of `nbytes` now, if the lent regions `given_back` were free."""
        with self._lock:
            gaps = _merged(sorted([*self._free, *given_back]))
        return next((gap for gap in gaps if gap.nbytes >= _pages(nbytes)), None)

    def lendable_bytes(self, nbytes: int) -> int:
        """Bytes that could be lent now in regions of `nbytes` each."""
        size = _pages(nbytes)
        with self._lock:
            return sum(gap.nbytes // size * size for gap in self._free)

    def _take(self, size: int, nbytes: int) -> SlabRegion:
        with self._lock:
            self._free_held_back()
            gap = next((gap for gap in self._free if gap.nbytes >= size), None)
            if gap is None:
                raise NoRoom(f"{nbytes} bytes do not fit beside what is lent", limit=self.nbytes, size=nbytes)
            region = SlabRegion(gap.offset, size)
            self._free.remove(gap)
            if gap.nbytes > size:
                insort(self._free, SlabRegion(gap.offset + size, gap.nbytes - size))
            self._lent.add(region)
        return region

    def release(self, region: SlabRegion) -> None:
        """Take a region back; raises ValueError if it is not lent."""
        with self._lock:
            if region not in self._lent:
                raise ValueError(f"{region} is not lent")
            self._lent.remove(region)
            unsafe = next((ended for ended, regions in self._unsafe if region in regions and not ended.is_set()), None)
            if unsafe is not None:
                self._held_back.append((unsafe, region))
                return
            insort(self._free, region)
            self._free = _merged(self._free)

    def hold_back(self, ended: threading.Event) -> None:
        """Lend nothing again that is lent now before `ended` is set: a process may go on writing to it until then."""
        with self._lock:
            self._unsafe = [each for each in self._unsafe if not each[0].is_set()]
            self._unsafe.append((ended, frozenset(self._lent)))

    def _free_held_back(self) -> None:
        """Free what was held back for processes that have ended; called under the lock."""
        freed = [region for ended, region in self._held_back if ended.is_set()]
        if freed:
            self._held_back = [each for each in self._held_back if not each[0].is_set()]
            self._free = _merged(sorted([*self._free, *freed]))

    def view(self, region: SlabRegion) -> memoryview:
        """The region's bytes, writable."""
        return memoryview(self._map)[region.offset : region.offset + region.nbytes]

    def close(self) -> None:
        """Free the memory; views that exist stay readable."""
        with suppress(BufferError):  # a view is still alive: the last one takes the mapping with it
            self._map.close()
        os.close(self.fd)

    def commit(self, region: SlabRegion) -> None:
        """Commit the pages of a lent region (page-fault them in). Blocks; raises NoRoom if the host has none.

        One region at a time, since the kernel clears the pages and would use every CPU; other methods do not wait.
        """
        first, last = _grains(region)
        added: list[int] = []
        while (at := self._committed.find(0, first, last)) >= 0:
            next_committed = self._committed.find(1, at, last)
            end = min(at + _AT_ONCE, last if next_committed < 0 else next_committed)
            if end == at:
                continue  # another region's borrower has just committed the grain that both have a part of
            try:
                with self._committing:
                    self._populate(at * _GRAIN, min(end * _GRAIN, self.nbytes) - at * _GRAIN)
            except OSError as error:
                facts = {"limit": sum(self._committed) * _GRAIN, "size": region.nbytes}
                self._uncommit(region, added)
                if error.errno not in {errno.ENOSPC, errno.ENOMEM}:
                    raise
                raise NoRoom(f"the host has no memory for {region.nbytes} bytes now", **facts) from error
            self._committed[at:end] = b"\1" * (end - at)
            added += range(at, end)

    def _populate(self, start: int, nbytes: int) -> None:
        """Allocate pages and fill this process's page table; raises OSError if there are none.

        Otherwise the event loop would take a page fault for each, 50,000 a second while bodies are received. If the
        kernel does not know the advice, it does.
        """
        os.posix_fallocate(self.fd, start, nbytes)
        for at in range(start, start + nbytes, _ENTERED):
            size = min(_ENTERED, start + nbytes - at)
            self._advise(ctypes.c_void_p(self._address + at), ctypes.c_size_t(size), _POPULATE_WRITE)

    def _lent_committed(self, region: SlabRegion) -> SlabRegion:
        try:
            self.commit(region)
        except BaseException:
            self.release(region)
            raise
        return region

    def _uncommit(self, region: SlabRegion, grains: Iterable[int]) -> None:
        """Free the grains that only this region uses, after not all of them could be committed."""
        for grain in grains:
            start = grain * _GRAIN
            if region.offset <= start and start + _GRAIN <= region.offset + region.nbytes:
                self._map.madvise(mmap.MADV_REMOVE, start, _GRAIN)
                self._committed[grain] = 0


def _grains(region: SlabRegion) -> tuple[int, int]:
    """The first grain of a region, and the one after its last."""
    return region.offset // _GRAIN, -(-(region.offset + region.nbytes) // _GRAIN)


def attach(fd: int, nbytes: int) -> memoryview:
    """Map the slab of another process, writable."""
    return memoryview(mmap.mmap(fd, nbytes))


def _never(nbytes: int) -> bool:
    del nbytes
    return False


def _pages(nbytes: int) -> int:
    return max(1, -(-nbytes // _PAGE)) * _PAGE


def _merged(gaps: list[SlabRegion]) -> list[SlabRegion]:
    merged: list[SlabRegion] = []
    for gap in gaps:
        if merged and merged[-1].offset + merged[-1].nbytes == gap.offset:
            gap = SlabRegion(merged[-1].offset, merged.pop().nbytes + gap.nbytes)  # noqa: PLW2901 - it grows
        merged.append(gap)
    return merged
