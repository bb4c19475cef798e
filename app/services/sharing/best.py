"""SharedBestConfigs: bests that other services promote and delete too."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self

from app.errors import StoreFailed
from app.services.best.known_devices import KnownDevices
from app.services.best.lookup import BestConfigs, ConfigFilter
from app.store.database import Database
from app.store.records import BestRecord, Promotion
from app.store.repository import BestRepository
from kernels.problem import Problem

_LOG = logging.getLogger(__name__)
_PATIENCE: Final = 1.0  # seconds until the database is asked again
_MANY: Final = 10_000  # problems from which on all are read: a query has so many parameters and not many more
_REST: Final = 4.0  # the thread idles for so many times as long as it was busy: requests wait for the GIL while it is


class SharedBestConfigs(BestConfigs):
    """Takes every change from the database, one after the other: what is read last was committed last.

    While `learning`, a thread updates what promotions say of other problems, several promotions at a time: it takes far
    longer than to take in the promotions themselves, which wait for it no more.
    """

    _database: Database | None = None  # until what is stored has been read
    _refreshing: threading.Lock
    _due: queue.SimpleQueue[BestRecord | None] | None = None  # to be learned from, by a thread; None ends it

    @classmethod
    def load(cls, fleet: KnownDevices, database: Database, quarantine: ConfigFilter | None = None) -> Self:
        """As BestConfigs."""
        best = super().load(fleet, database, quarantine)
        best.share(database)
        return best

    def share(self, database: Database) -> None:
        """Take changes from the database from now on."""
        self._refreshing, self._database = threading.Lock(), database

    def promoted(self, records: Iterable[BestRecord]) -> None:
        """As BestConfigs; what another service has promoted since is taken in place of these."""
        if self._database is None:
            super().promoted(records)
        else:
            self.refresh({(record.device_model, record.problem) for record in records})

    def deleted(self, model: str, problem: Problem) -> None:
        """As BestConfigs, unless another service has promoted one since."""
        self.refresh({(model, problem)})

    def refresh(self, places: Collection[tuple[str, Problem]]) -> None:
        """Take what is stored now of some device models and problems; raises StoreFailed."""
        if self._database is None or not places:
            return
        keys = {problem.key for _, problem in places}
        with self._refreshing:
            stored = self._database.read(lambda session: BestRepository(session).all(keys))
            self._replace(stored, places)

    def reload(self) -> None:
        """Take everything that is stored now, of which what has not changed is not read again; raises StoreFailed."""
        if self._database is None:
            return
        with self._refreshing:
            promotions = set(self._database.read(lambda session: BestRepository(session).promotions()))
            changed = [record for record in self.all() if Promotion.of(record) not in promotions]
            fresh = promotions.difference(map(Promotion.of, self.all()))
            keys = {each.problem_key for each in fresh} | {record.problem.key for record in changed}
            asked = keys if len(keys) <= _MANY else None
            stored = self._database.read(lambda session: BestRepository(session).all(asked)) if keys else []
            self._replace(stored, {(record.device_model, record.problem) for record in [*stored, *changed]})

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Have a thread learn from promotions until the block ends."""
        self._due, ended = queue.SimpleQueue(), threading.Event()
        thread = threading.Thread(target=self._learn_until, args=(ended, self._due), name="learn bests", daemon=True)
        thread.start()
        try:
            yield
        finally:
            due, self._due = self._due, None
            ended.set()
            due.put(None)
            thread.join(timeout=5)

    def _learn(self, records: Sequence[BestRecord]) -> None:
        if (due := self._due) is None:
            super()._learn(records)
            return
        for record in records:
            due.put(record)

    def _learn_until(self, ended: threading.Event, due: queue.SimpleQueue[BestRecord | None]) -> None:
        while (record := due.get()) is not None:
            records = [record]
            while not due.empty() and (record := due.get()) is not None:
                records.append(record)
            started = time.monotonic()
            try:
                super()._learn(records)
                rest = _REST * (time.monotonic() - started)
            except StoreFailed as error:
                _LOG.warning("bests are learned from later: %s", error.message)
                for each in records:
                    due.put(each)
                rest = _PATIENCE
            if ended.wait(rest):
                return

    def _replace(self, stored: Iterable[BestRecord], places: Collection[tuple[str, Problem]]) -> None:
        found = {(record.device_model, record.problem): record for record in stored}
        fresh = [record for place in places if (record := found.get(place)) and self.record(*place) != record]
        if fresh:
            super().promoted(fresh)
        for place in places:
            if place not in found and self.record(*place) is not None:
                super().deleted(*place)
