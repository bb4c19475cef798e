"""SharedBestConfigs: bests that other services promote and delete too."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Self

from app.services.best.lookup import BestConfigs, ConfigFilter, KnownDevices
from app.store.database import Database
from app.store.records import BestRecord
from app.store.repository import BestRepository
from kernels.problem import Problem


class SharedBestConfigs(BestConfigs):
    """Takes every change from the database, one after the other: what is read last was committed last."""

    _database: Database | None = None  # until what is stored has been read
    _refreshing: threading.Lock

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
        """Take everything that is stored now; raises StoreFailed."""
        if self._database is None:
            return
        with self._refreshing:
            stored = self._database.read(lambda session: BestRepository(session).all())
            self._replace(stored, {(record.device_model, record.problem) for record in [*stored, *self.all()]})

    def _replace(self, stored: Iterable[BestRecord], places: Collection[tuple[str, Problem]]) -> None:
        found = {(record.device_model, record.problem): record for record in stored}
        fresh = [record for place in places if (record := found.get(place)) and self.record(*place) != record]
        if fresh:
            super().promoted(fresh)
        for place in places:
            if place not in found and self.record(*place) is not None:
                super().deleted(*place)
