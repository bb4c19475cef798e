from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import secrets
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from app.devices.slab import Slab, SlabRegion, attach
from app.errors import NoRoom, TooLarge
from tests.support.devices import child_functions

PAGE = 4096


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = Slab(64 * PAGE)
    yield slab
    slab.close()


def test_a_region_is_whole_pages_and_backed_in_full_before_it_is_lent(slab: Slab) -> None:
    assert os.fstat(slab.fd).st_blocks == 0
    region = slab.lend(3 * PAGE + 1)
    assert region.offset % PAGE == 0
    assert region.nbytes == 4 * PAGE
    assert os.fstat(slab.fd).st_blocks * 512 >= 4 * PAGE
    assert slab.lent_bytes == 4 * PAGE


def test_a_region_may_be_lent_at_once_and_backed_before_it_is_touched(slab: Slab) -> None:
    region = slab.lend(3 * PAGE, committed=False)
    assert os.fstat(slab.fd).st_blocks == 0
    assert slab.is_uncommitted(region)
    with pytest.raises(NoRoom):
        slab.lend(62 * PAGE)
    slab.commit(region)
    assert os.fstat(slab.fd).st_blocks * 512 >= 3 * PAGE
    assert not slab.is_uncommitted(region)
    slab.release(region)
    assert not slab.is_uncommitted(slab.lend(2 * PAGE, committed=False)), "what was backed stays so"


def test_backed_region_has_no_page_faults() -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this system enters pages as they are touched")
    slab = Slab(2**24)
    region = slab.lend(2**24, committed=False)
    slab.commit(region)
    view = slab.view(region)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    view[::PAGE] = bytes(2**24 // PAGE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 2**24 // PAGE // 10
    del view
    slab.close()


def test_a_grain_that_another_has_just_committed_is_left_to_it(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raced(bytearray):
        """The other region is committed once a grain is found to be missing, and before its gap's end is looked for."""

        def find(self, *what: int) -> int:  # type: ignore[override]
            found = super().find(*what)
            if what[0] == 0 and found >= 0 and not self[found]:
                self[found] = 1
            return found

    region = slab.lend(PAGE, committed=False)
    monkeypatch.setattr(slab, "_committed", Raced(1))  # the slab is smaller than a grain
    slab.commit(region)
    assert not slab.is_uncommitted(region)


def test_what_one_process_writes_another_mapping_reads(slab: Slab) -> None:
    slab.lend(PAGE)
    region = slab.lend(2 * PAGE)
    slab.view(region)[:5] = b"tiles"
    other = attach(slab.fd, slab.nbytes)
    assert bytes(other[region.offset : region.offset + 5]) == b"tiles"
    other[region.offset] = ord("f")
    assert bytes(slab.view(region)[:5]) == b"files"


def test_a_request_over_the_whole_slab_can_never_fit(slab: Slab) -> None:
    with pytest.raises(TooLarge) as refusal:
        slab.lend(64 * PAGE + 1)
    assert refusal.value.facts == {"limit": 64 * PAGE, "size": 64 * PAGE + 1}


def test_a_request_that_does_not_fit_now_fits_after_a_release(slab: Slab) -> None:
    first = slab.lend(40 * PAGE)
    with pytest.raises(NoRoom) as refusal:
        slab.lend(30 * PAGE)
    assert refusal.value.facts == {"limit": 64 * PAGE, "size": 30 * PAGE}
    slab.release(first)
    assert slab.lend(64 * PAGE) == SlabRegion(0, 64 * PAGE)


def test_a_second_release_is_an_error(slab: Slab) -> None:
    region = slab.lend(1)
    slab.release(region)
    with pytest.raises(ValueError, match="not lent"):
        slab.release(region)


def test_the_room_for_a_size_is_that_of_the_holes_it_fits_in(slab: Slab) -> None:
    page, half = 2**12, slab.nbytes // 2
    assert slab.lendable_bytes(1) == slab.nbytes
    low, _ = slab.lend(half - page), slab.lend(page)
    slab.release(low)
    assert slab.lendable_bytes(half) == half
    assert slab.lendable_bytes(half - page) == 2 * (half - page)
    assert slab.lendable_bytes(half + 1) == 0
    assert slab.lendable_bytes(page) == slab.nbytes - page


def test_neighbouring_holes_become_one(slab: Slab) -> None:
    regions = [slab.lend(16 * PAGE) for _ in range(4)]
    for index in (0, 2, 1, 3):
        slab.release(regions[index])
    assert slab.lend(64 * PAGE) == SlabRegion(0, 64 * PAGE)


def test_regions_never_overlap_whatever_the_order() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    draw = random.Random(seed)  # noqa: S311 - it draws sizes
    slab = Slab(256 * PAGE)
    lent: list[SlabRegion] = []
    for _ in range(2000):
        if lent and draw.random() < 0.5:
            slab.release(lent.pop(draw.randrange(len(lent))))
            continue
        try:
            lent.append(slab.lend(draw.randrange(1, 40 * PAGE)))
        except NoRoom:
            continue
        spans = sorted((region.offset, region.offset + region.nbytes) for region in lent)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert spans[-1][1] <= slab.nbytes
    assert slab.lent_bytes == sum(region.nbytes for region in lent)
    slab.close()


def test_threads_lend_and_release_without_losing_a_page(slab: Slab) -> None:
    def work(mark: int) -> None:
        for _ in range(200):
            region = slab.lend(4 * PAGE)
            view = slab.view(region)
            view[:] = bytes([mark]) * len(view)
            assert bytes(view) == bytes([mark]) * len(view)
            slab.release(region)

    failures: list[threading.ExceptHookArgs] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.excepthook = hook
    assert not failures
    assert slab.lend(64 * PAGE).nbytes == 64 * PAGE


def test_closing_gives_the_descriptor_back_even_while_a_view_is_held() -> None:
    before = child_functions.descriptors()
    slab = Slab(PAGE)
    view = slab.view(slab.lend(PAGE))
    slab.close()
    view[0] = 1
    assert view[0] == 1
    del view, slab
    assert child_functions.descriptors() == before


def test_failed_backing_of_a_region_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    slab = Slab(2**27)
    kept = slab.lend(3 * PAGE)
    slab.view(kept)[:4] = b"mine"
    before, allocate, calls = os.fstat(slab.fd).st_blocks, os.posix_fallocate, itertools.count(1)

    def runs_out(fd: int, offset: int, nbytes: int) -> None:
        if next(calls) == 3:
            raise OSError(errno.ENOMEM, "no memory")
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", runs_out)
    with pytest.raises(NoRoom, match="the host has no memory"):
        slab.lend(2**27 - 4 * PAGE)
    assert os.fstat(slab.fd).st_blocks - before < 2**20 // 512
    assert bytes(slab.view(kept)[:4]) == b"mine"
    region = slab.lend(2**27 - 4 * PAGE)
    slab.view(region)[:] = bytes(region.nbytes)
    slab.close()
