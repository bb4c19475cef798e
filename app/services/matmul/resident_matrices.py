"""Resident matrices: named operands kept in the slab, so that a product need not send them again."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from math import prod
from typing import Final, TypeAlias

from app.devices.slab import Slab, SlabRegion
from app.errors import Invalid, MatrixGone, PreconditionFailed, QuotaExceeded, TooLarge, UnknownMatrix
from app.services.principal import Principal
from kernels.problem import ITEMSIZE

NAME: Final = r"[A-Za-z0-9._-]{1,100}"
Condition: TypeAlias = Callable[[int | None], bool]  # of the version that a name has now, None if it has none
_REMEMBERED: Final = 4096  # names of evicted matrices that are answered by "gone" rather than "unknown"


@dataclass(frozen=True, slots=True)
class MatrixQuota:
    """What one owner may keep: bytes, and how many matrices."""

    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class ResidentMatrix:
    """One version of a named matrix, or a batch of them, row-major as stored: its bytes in the slab never change.

    `key` is the version, unique in the process. An evictable matrix may be dropped when memory is needed.
    """

    key: int
    owner: Principal
    name: str
    dtype: str
    shape: tuple[int, ...]
    evictable: bool
    region: SlabRegion
    created_at: datetime

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class PendingMatrix:
    """A matrix that is being received or made: its bytes may be written."""

    resident: ResidentMatrix
    name_it: Callable[[Condition | None], bool]

    def keep(self, condition: Condition | None = None) -> bool:
        """Give it its name, and say whether that replaces another; raises PreconditionFailed."""
        return self.name_it(condition)


@dataclass(frozen=True, slots=True)
class MatrixCounts:
    """Matrices that have a name, their bytes, and how many were evicted so far."""

    count: int
    nbytes: int
    evictions: int


@dataclass(slots=True, eq=False)
class _NamedMatrix:
    resident: ResidentMatrix
    used_at: datetime
    pins: int = 0
    named: bool = False


class ResidentMatrices:
    """Every resident matrix; safe from any thread, and gone with the process.

    A matrix that is replaced, deleted or evicted loses its name at once; its bytes stay until it is unpinned.
    `released` is then called with its key.
    """

    def __init__(self, slab: Slab, quota: MatrixQuota, released: Callable[[int], None]) -> None:
        self.quota = quota
        self._slab, self._released = slab, released
        self._lock = threading.Lock()
        self._keys = count(1)
        self._named: dict[tuple[str, str], _NamedMatrix] = {}  # the least recently used first
        self._claims: dict[int, tuple[str, str, int]] = {}  # of pending matrices: owner, name, bytes
        self._unnamed: set[_NamedMatrix] = set()  # replaced, deleted or evicted, and still pinned
        self._evicted: dict[tuple[str, str], datetime] = {}
        self._evictions = 0

    @contextmanager
    def reserve(
        self,
        owner: Principal,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        evictable: bool = False,
        committed: bool = True,
    ) -> Iterator[PendingMatrix]:
        """Reserve slab bytes for a matrix; one that was not kept when the block ends is dropped.

        If they are not `committed`, their pages are to be committed before they are touched. The owner's evictable
        matrices are evicted for its quota. Raises Invalid for the name, TooLarge for what the quota or the slab can
        never hold, QuotaExceeded, and NoRoom.
        """
        check_name(name)
        key = self._claim_quota(owner, name, prod(shape) * ITEMSIZE[dtype])
        try:
            region = self._slab.lend(prod(shape) * ITEMSIZE[dtype], committed=committed)
        except BaseException:
            self._release_quota(key)
            raise
        now = datetime.now(UTC)
        entry = _NamedMatrix(ResidentMatrix(key, owner, name, dtype, shape, evictable, region, now), now, pins=1)
        try:
            yield PendingMatrix(entry.resident, partial(self._keep, entry))
        finally:
            self._release_quota(key)
            self._unpin(entry)

    @contextmanager
    def pin(self, owner: Principal, name: str) -> Iterator[ResidentMatrix]:
        """Pin the present version of a matrix; raises UnknownMatrix, MatrixGone."""
        with self._lock:
            entry = self._find(owner, name)
            self._named[owner.name, name] = self._named.pop((owner.name, name))
            entry.used_at = datetime.now(UTC)
            entry.pins += 1
        try:
            yield entry.resident
        finally:
            self._unpin(entry)

    def get(self, owner: Principal, name: str) -> tuple[ResidentMatrix, datetime]:
        """A matrix, and when it was last used, without that being a use; raises UnknownMatrix, MatrixGone."""
        with self._lock:
            entry = self._find(owner, name)
            return entry.resident, entry.used_at

    def list(self, owner: Principal, after: str = "", limit: int = 100) -> list[tuple[ResidentMatrix, datetime]]:
        """A page of the owner's matrices by name, those after a name; with each, when it was last used."""
        with self._lock:
            mine = sorted(name for who, name in self._named if who == owner.name and name > after)
            entries = [self._named[owner.name, name] for name in mine[:limit]]
            return [(entry.resident, entry.used_at) for entry in entries]

    def expect(self, owner: Principal, name: str, condition: Condition) -> None:
        """Raise PreconditionFailed if the condition does not hold now."""
        with self._lock:
            self._expect_condition(owner, name, condition)

    def delete(self, owner: Principal, name: str, condition: Condition | None = None) -> None:
        """Delete a matrix; raises UnknownMatrix, MatrixGone, PreconditionFailed."""
        with self._lock:
            entry = self._find(owner, name)
            if condition is not None:
                self._expect_condition(owner, name, condition)
            self._unname(entry)

    def view(self, resident: ResidentMatrix) -> memoryview:
        """The bytes of a pinned matrix, writable while it is pending."""
        return self._slab.view(resident.region)[: resident.nbytes]

    def evict_for(self, nbytes: int) -> bool:
        """Evict matrices until `nbytes` fit into the slab; whether any was evicted.

        The least recently used go first, and of those only what frees the gap. None goes if all together would not be
        enough.
        """
        with self._lock:
            spare = [entry for entry in self._named.values() if entry.resident.evictable and not entry.pins]
            regions = [entry.resident.region for entry in spare]
            least = bisect_left(
                range(len(spare)), True, key=lambda n: self._slab.find_gap(nbytes, regions[: n + 1]) is not None
            )
            gap = self._slab.find_gap(nbytes, regions[: least + 1])
            if gap is None or not spare:
                return False
            end = gap.offset + gap.nbytes
            inside = [entry for entry in spare[: least + 1] if gap.offset <= entry.resident.region.offset < end]
            for entry in inside or spare[:1]:  # a gap without a matrix in it had no memory of the host behind it
                self._evict(entry)
            return True

    def counts(self) -> MatrixCounts:
        """How many matrices there are, of all owners."""
        with self._lock:
            sizes = [entry.resident.nbytes for entry in self._named.values()]
            return MatrixCounts(len(sizes), sum(sizes), self._evictions)

    def _claim_quota(self, owner: Principal, name: str, nbytes: int) -> int:
        """Claim bytes and a place of the quota, evicting the owner's matrices; raises TooLarge, QuotaExceeded."""
        quota = self._quota_of(owner)
        limit = min(quota.nbytes, self._slab.nbytes)
        if nbytes > limit:
            raise TooLarge(f"{name} takes {nbytes} bytes, one owner may keep {limit}", limit=limit, size=nbytes)
        with self._lock:
            others = [e for (who, other), e in self._named.items() if who == owner.name and other != name]
            claims = [size for who, _, size in self._claims.values() if who == owner.name]
            unnamed = [entry.resident.nbytes for entry in self._unnamed if entry.resident.owner.name == owner.name]
            used = sum(entry.resident.nbytes for entry in others) + sum(claims) + sum(unnamed)
            places = len(others) + len(claims)
            victims = []
            for entry in others:
                if used + nbytes <= quota.nbytes and places < quota.count:
                    break
                if entry.resident.evictable and not entry.pins:
                    victims.append(entry)
                    used, places = used - entry.resident.nbytes, places - 1
            _expect(quota, used, places, nbytes)
            for entry in victims:
                self._evict(entry)
            key = next(self._keys)
            self._claims[key] = (owner.name, name, nbytes)
            return key

    def _quota_of(self, owner: Principal) -> MatrixQuota:
        """What an owner may keep."""
        own = owner.quota.resident_bytes
        return self.quota if own is None else replace(self.quota, nbytes=min(own, self.quota.nbytes))

    def _release_quota(self, key: int) -> None:
        with self._lock:
            self._claims.pop(key, None)

    def _expect_condition(self, owner: Principal, name: str, condition: Condition) -> None:
        """Raise PreconditionFailed; called under the lock."""
        entry = self._named.get((owner.name, name))
        version = None if entry is None else entry.resident.key
        if not condition(version):
            found = "there is none" if version is None else f"its version is {version}"
            raise PreconditionFailed(f"the matrix {name} is not as the request says: {found}", version=version)

    def _keep(self, entry: _NamedMatrix, condition: Condition | None) -> bool:
        resident = entry.resident
        where = (resident.owner.name, resident.name)
        with self._lock:
            if condition is not None:
                self._expect_condition(resident.owner, resident.name, condition)
            old = self._named.get(where)
            if old is not None:
                self._unname(old)
            self._evicted.pop(where, None)
            self._claims.pop(resident.key, None)
            self._named[where], entry.named = entry, True
        return old is not None

    def _find(self, owner: Principal, name: str) -> _NamedMatrix:
        where = (owner.name, name)
        if where in self._evicted:
            at = self._evicted[where]
            message = f"{name} was evicted at {at:%Y-%m-%dT%H:%M:%SZ} to make room: put it again"
            raise MatrixGone(message, evicted_at=at.isoformat())
        if where not in self._named:
            raise UnknownMatrix(f"there is no matrix {name}")
        return self._named[where]

    def _evict(self, entry: _NamedMatrix) -> None:
        self._unname(entry)
        self._evictions += 1
        self._evicted[entry.resident.owner.name, entry.resident.name] = datetime.now(UTC)
        while len(self._evicted) > _REMEMBERED:
            del self._evicted[next(iter(self._evicted))]

    def _unname(self, entry: _NamedMatrix) -> None:
        del self._named[entry.resident.owner.name, entry.resident.name]
        entry.named = False
        self._unnamed.add(entry)
        self._release_unused(entry)

    def _unpin(self, entry: _NamedMatrix) -> None:
        with self._lock:
            entry.pins -= 1
            self._release_unused(entry)

    def _release_unused(self, entry: _NamedMatrix) -> None:
        """Release the bytes of a matrix without name and pins; called under the lock."""
        if not entry.named and not entry.pins:
            self._unnamed.discard(entry)
            self._slab.release(entry.resident.region)
            self._released(entry.resident.key)


def check_name(name: str) -> None:
    """Raise Invalid for what is no name of a matrix."""
    if not re.fullmatch(NAME, name) or name in {".", ".."}:
        raise Invalid(f"a matrix's name is 1 to 100 of A-Z a-z 0-9 . _ and -, got {name[:100]!r}", name=name[:100])


def _expect(quota: MatrixQuota, used: int, places: int, nbytes: int) -> None:
    """Raise QuotaExceeded if a matrix of so many bytes is too much beside what is kept."""
    if places >= quota.count:
        message = f"{places} matrices are kept, the quota is {quota.count}: delete one"
        raise QuotaExceeded(message, limit=quota.count, used=places)
    if used + nbytes > quota.nbytes:
        message = f"{nbytes} bytes beside {used} are over the quota of {quota.nbytes}: delete some"
        raise QuotaExceeded(message, limit=quota.nbytes, used=used, size=nbytes)
