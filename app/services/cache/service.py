"""CacheService: opaque results of other tuners, bounded by principal, with entity tags and expiry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from app.errors import PreconditionFailed, QuotaExceeded, UnknownCacheEntry
from app.services.principal import Principal
from app.store.database import Database
from app.store.records import CacheRecord
from app.store.repository import CacheRepository

LONGEST: Final = 2**16  # bytes of an entry
MOST_ENTRIES: Final = 10_000  # of a principal
MOST_BYTES: Final = 2**26

EtagCondition = Callable[[str | None], bool]


def etag_of(body: bytes) -> str:
    """The entity tag of what an entry holds."""
    return f'"{sha256(body).hexdigest()[:32]}"'


class CacheService:
    """Entries of principals, each seen by its owner alone. Every method blocks for a query."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database, self._clock = database, clock

    def get(self, principal: Principal, namespace: str, key: str) -> CacheRecord:
        """An entry that has not expired; raises UnknownCacheEntry."""
        place = principal.name, namespace, key
        found = self._database.read(lambda session: CacheRepository(session).get(*place, self._clock()))
        if found is None:
            raise UnknownCacheEntry(f"there is no {key} in {namespace}")
        return found

    def put(
        self,
        principal: Principal,
        place: tuple[str, str],
        content: tuple[bytes, str],
        ttl: float | None,
        condition: EtagCondition | None,
    ) -> tuple[CacheRecord, bool]:
        """Keep a body and its media type for `ttl` seconds, None: until it is deleted; True beside it if it is new.

        Raises PreconditionFailed, QuotaExceeded.
        """
        now = self._clock()
        body, media = content
        until = None if ttl is None else now + timedelta(seconds=ttl)
        record = CacheRecord(principal.name, *place, body, media, etag_of(body), now, until)

        def write(session: Any) -> bool:
            entries = CacheRepository(session)
            entries.delete_expired(principal.name, now)
            before = entries.get(principal.name, *place, now)
            etag = None if before is None else before.etag
            if condition is not None and not condition(etag):
                raise PreconditionFailed("the entry is not as the request says", version=etag)
            count, size = entries.usage(principal.name)
            size += len(body) - (0 if before is None else len(before.body))
            if size > MOST_BYTES or (before is None and count >= MOST_ENTRIES):
                used = size - len(body)
                raise QuotaExceeded(f"you keep {count} entries", limit=MOST_BYTES, used=used, size=len(body))
            entries.save(record)
            return before is None

        return record, self._database.write(write)

    def delete(self, principal: Principal, namespace: str, key: str) -> None:
        """Forget an entry; raises UnknownCacheEntry."""
        self.get(principal, namespace, key)
        place = principal.name, namespace, key
        self._database.write(lambda session: CacheRepository(session).delete(*place))

    def list(self, principal: Principal, namespace: str, before: int | None, limit: int) -> Sequence[CacheRecord]:
        """A namespace's entries, newest first; `before` is the number of the last one already seen."""
        place = principal.name, namespace
        return self._database.read(lambda session: CacheRepository(session).list(*place, self._clock(), before, limit))
