"""Opens what a service needs that shares its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.devices.fleet import Unit
from app.services.sharing.claims import JobClaims
from app.services.sharing.follower import Followed, StoreFollower
from app.store.database import Database
from app.store.sharing.listener import Listener


@contextmanager
def claiming(database: Database, units: Sequence[Unit], lease: float) -> Iterator[JobClaims]:
    """Write under claims alone until the block ends, and give back then what is held."""
    claims = JobClaims(database, units, lease)
    database.share(claims.held)
    try:
        yield claims
    finally:
        claims.stop()


@contextmanager
def following(database: Database, who: str, claims: JobClaims, followed: Followed) -> Iterator[None]:
    """Have what is kept in memory follow what other services commit until the block ends."""
    follower = StoreFollower(database, claims.held.service, followed, claims.wake)
    listener = Listener(database.url, who, follower.heard, follower.missed)
    with followed.best.learning():
        listener.start()
        try:
            yield
        finally:
            listener.stop()
