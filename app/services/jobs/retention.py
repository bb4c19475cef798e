"""Retention: what is stored of jobs, trials and misses is pruned beyond a count or an age, a few rows at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from app.errors import TilewiseError
from app.store.database import Database
from app.store.repository import PruneRepository

_LOG: Final = logging.getLogger(__name__)
_PERIOD: Final = 60.0  # seconds between two looks for what is too much
_ROWS: Final = 500  # looked at in one transaction, which others' writes wait for
_PAUSE: Final = 0.01  # seconds between two transactions, in which others write


@dataclass(frozen=True, slots=True)
class Keep:
    """How many rows of a kind are kept, and for how many days; None for any age.

    Days are counted by the wall clock: one that is set far ahead makes rows old.
    """

    rows: int
    days: float | None = None

    def before(self, now: datetime) -> datetime | None:
        """The moment before which a row is too old, or None."""
        return None if self.days is None else now - timedelta(days=self.days)


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What is kept of each kind: jobs that have ended, trials that no best refers to, misses."""

    jobs: Keep
    trials: Keep
    misses: Keep


class Retention:
    """Prunes a database from a thread of its own, and has others `expire`; a job whose result `is_kept` stays."""

    def __init__(
        self,
        database: Database,
        limits: RetentionLimits,
        is_kept: Callable[[str], bool],
        expire: Callable[[], None] = lambda: None,
    ) -> None:
        self._database, self._limits, self._is_kept, self._expire = database, limits, is_kept, expire
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Prune from now on, every minute."""
        self._thread = threading.Thread(target=self._work, name="retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the transaction under way."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def prune(self) -> None:
        """Prune what is too much or too old now: trials before the jobs that they belong to; raises StoreFailed."""
        now, limits = datetime.now(UTC), self._limits
        self._all(lambda rows, after: rows.trials(after, _ROWS, limits.trials.rows, limits.trials.before(now)))
        self._all(lambda rows, after: rows.jobs(after, _ROWS, limits.jobs.rows, limits.jobs.before(now), self._is_kept))
        self._all(lambda rows, _: rows.misses(_ROWS, limits.misses.rows, limits.misses.before(now)))
        self._expire()

    def _all(self, some: Callable[[PruneRepository, int], int | None]) -> None:
        """Prune rows of a kind, some in each transaction, until none is left behind the last one that was looked at."""
        after: int | None = 0
        while after is not None:
            at = after
            after = self._database.write(lambda session, at=at: some(PruneRepository(session), at))  # type: ignore[misc]
            if self._ending.wait(_PAUSE):
                return

    def _work(self) -> None:
        while not self._ending.wait(_PERIOD):
            try:
                self.prune()
            except TilewiseError as error:
                _LOG.warning("what is too old could not be pruned: %s", error.message)
