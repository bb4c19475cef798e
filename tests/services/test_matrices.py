"""Resident matrices: what is kept is there, within quotas; what must go is what may go; no bytes are mixed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from app.devices.backend import Buffer
from app.devices.slab import Slab
from app.errors import Invalid, MatrixGone, NoRoom, QuotaExceeded, TooLarge, UnknownMatrix
from app.services.matmul.resident_matrices import MatrixQuota, ResidentMatrices, ResidentMatrix
from app.services.principal import Principal
from app.worker.serving.device_memory import DeviceBufferCache

PAGE = 4096
ME, YOU = Principal("me"), Principal("you")


@pytest.fixture
def released() -> list[int]:
    return []


@pytest.fixture
def slab() -> Iterator[Slab]:
    """Sixteen pages."""
    slab = Slab(16 * PAGE)
    yield slab
    slab.close()


@pytest.fixture
def matrices(slab: Slab, released: list[int]) -> ResidentMatrices:
    """One owner may keep eight pages, in five matrices."""
    matrices = ResidentMatrices(slab, MatrixQuota(8 * PAGE, 5), released.append)
    slab.reclaim = matrices.evict_for
    return matrices


def put(
    matrices: ResidentMatrices, name: str, pages: int = 1, *, owner: Principal = ME, evictable: bool = False
) -> ResidentMatrix:
    """Keep a float32 matrix of whole pages, filled with its version."""
    with matrices.reserve(owner, name, "float32", (pages, PAGE // 4), evictable=evictable) as draft:
        numbers(matrices, draft.resident)[...] = draft.resident.key
        draft.keep()
    return draft.resident


def numbers(matrices: ResidentMatrices, resident: ResidentMatrix) -> np.ndarray:
    return np.frombuffer(matrices.view(resident), np.float32)


def names(matrices: ResidentMatrices, owner: Principal = ME) -> list[str]:
    return [resident.name for resident, _ in matrices.list(owner)]


def test_what_is_put_is_there_until_it_is_deleted(matrices: ResidentMatrices, slab: Slab, released: list[int]) -> None:
    kept = put(matrices, "w", 2)
    with matrices.pin(ME, "w") as found:
        assert found == kept
        assert set(numbers(matrices, found)) == {kept.key}
    assert (kept.nbytes, matrices.counts().nbytes) == (2 * PAGE, 2 * PAGE)
    matrices.delete(ME, "w")
    with pytest.raises(UnknownMatrix):
        matrices.get(ME, "w")
    assert (released, matrices.counts().count, slab.lent_bytes) == ([kept.key], 0, 0)


def test_what_does_not_arrive_leaves_nothing(matrices: ResidentMatrices, slab: Slab, released: list[int]) -> None:
    old = put(matrices, "w")
    with pytest.raises(OSError, match="gone"), matrices.reserve(ME, "w", "float64", (8, 8)) as draft:
        raise OSError("the client is gone")
    assert matrices.get(ME, "w")[0] == old
    assert released == [draft.resident.key]
    assert slab.lent_bytes == PAGE
    put(matrices, "x", 7)


def test_a_replaced_matrix_stays_as_it_was_for_who_uses_it(matrices: ResidentMatrices, released: list[int]) -> None:
    old = put(matrices, "w")
    with matrices.pin(ME, "w") as held:
        new = put(matrices, "w")
        matrices.delete(ME, "w")
        newest = put(matrices, "w")
        assert set(numbers(matrices, held)) == {old.key}
        assert released == [new.key]
    assert released == [new.key, old.key]
    with matrices.pin(ME, "w") as held:
        assert held == newest


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 101, "ä", ".", ".."])
def test_a_name_is_refused_before_anything_is_lent(matrices: ResidentMatrices, slab: Slab, name: str) -> None:
    with pytest.raises(Invalid), matrices.reserve(ME, name, "float32", (1, 1)):
        pass
    assert slab.lent_bytes == 0


def test_owners_see_and_fill_what_is_theirs_alone(matrices: ResidentMatrices) -> None:
    put(matrices, "w", 8)
    with pytest.raises(UnknownMatrix):
        matrices.get(YOU, "w")
    put(matrices, "w", 8, owner=YOU)
    matrices.delete(ME, "w")
    assert (names(matrices), names(matrices, YOU)) == ([], ["w"])


def test_pages_are_by_name(matrices: ResidentMatrices) -> None:
    for name in ("c", "a", "e", "b", "d"):
        put(matrices, name)
    pages = [matrices.list(ME, after, 2) for after in ("", "b", "d", "e")]
    assert [[resident.name for resident, _ in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"], []]


def test_over_the_quota_is_refused_with_the_figures(matrices: ResidentMatrices, slab: Slab) -> None:
    put(matrices, "a", 6)
    with pytest.raises(QuotaExceeded) as refused:
        put(matrices, "b", 3)
    assert refused.value.facts == {"limit": 8 * PAGE, "used": 6 * PAGE, "size": 3 * PAGE}
    with pytest.raises(TooLarge):
        put(matrices, "b", 9)
    put(matrices, "a", 8)
    assert slab.lent_bytes == 8 * PAGE
    matrices.delete(ME, "a")
    for name in "vwxyz":
        put(matrices, name)
    with pytest.raises(QuotaExceeded) as refused:
        put(matrices, "a")
    assert refused.value.facts == {"limit": 5, "used": 5}
    put(matrices, "v")


def test_what_lost_its_name_counts_until_nobody_uses_it(matrices: ResidentMatrices) -> None:
    put(matrices, "a", 3)
    with matrices.pin(ME, "a"):
        put(matrices, "a", 3)
        with matrices.pin(ME, "a"), pytest.raises(QuotaExceeded) as refused:
            put(matrices, "a", 6)
        assert refused.value.facts == {"limit": 8 * PAGE, "used": 3 * PAGE, "size": 6 * PAGE}
        put(matrices, "b", 2)
    put(matrices, "c", 3)


def test_what_is_on_its_way_counts(matrices: ResidentMatrices) -> None:
    with matrices.reserve(ME, "a", "float32", (6, PAGE // 4)):
        with pytest.raises(QuotaExceeded):
            put(matrices, "b", 3)
        put(matrices, "b", 2)
    put(matrices, "a", 6)


def test_evictable_matrices_give_way_to_their_owners_quota(matrices: ResidentMatrices) -> None:
    put(matrices, "stays", 2)
    for name in ("old", "used", "new"):
        put(matrices, name, 2, evictable=True)
    with matrices.pin(ME, "old"):
        pass
    put(matrices, "more", 1)
    assert names(matrices) == ["more", "new", "old", "stays"]
    with pytest.raises(QuotaExceeded):
        put(matrices, "most", 6)
    assert names(matrices) == ["more", "new", "old", "stays"]
    with pytest.raises(MatrixGone) as gone:
        matrices.get(ME, "used")
    assert gone.value.facts["evicted_at"]
    put(matrices, "used", 1)
    assert matrices.get(ME, "used")


def test_evictable_matrices_give_way_to_whoever_wants_the_slab(
    matrices: ResidentMatrices, slab: Slab, released: list[int]
) -> None:
    kept = [put(matrices, name, 2, evictable=name != "stays") for name in ("lone", "stays", "new")]
    with pytest.raises(NoRoom):
        slab.lend(15 * PAGE)
    with matrices.pin(ME, "new"), pytest.raises(NoRoom):
        slab.lend(11 * PAGE)
    assert released == [], "some were evicted in vain"
    region = slab.lend(12 * PAGE)
    assert released == [kept[2].key], "the one used least recently has no part in the room"
    slab.release(slab.lend(2 * PAGE))
    assert released == [kept[2].key, kept[0].key]
    assert matrices.counts().evictions == 2
    slab.release(region)
    assert names(matrices) == ["stays"]


def test_the_least_recently_used_of_those_that_make_room_goes(
    matrices: ResidentMatrices, slab: Slab, released: list[int]
) -> None:
    kept = [put(matrices, name, 2, evictable=True) for name in ("a", "b", "c", "d")]
    with matrices.pin(ME, "a"):
        pass
    slab.lend(8 * PAGE)
    slab.lend(2 * PAGE)
    assert released == [kept[1].key]
    slab.lend(4 * PAGE)
    assert released == [kept[1].key, kept[2].key, kept[3].key]
    slab.lend(2 * PAGE)
    assert names(matrices) == []


def copy(nbytes: int) -> Buffer:
    return Buffer(object(), nbytes)


def test_device_copies_are_evicted_least_recently_used_first() -> None:
    kept = DeviceBufferCache()
    for key in (1, 2, 3):
        assert kept.make_room(10, 30, {key})
        kept.put(key, copy(10))
    assert kept.copy(1) is not None
    assert kept.make_room(5, 30, {4, None})
    kept.put(4, copy(5))
    assert kept.keys == (3, 1, 4)
    assert not kept.make_room(20, 30, {3, 1, 5}), "it would take what the same product needs"
    assert kept.keys == (3, 1, 4)
    assert kept.copy(2) is kept.copy(None) is None
    kept.forget([3, 9])
    assert [kept.spare({4}), kept.spare({4})] == [True, False]
    assert list(kept.keys) == [4]
