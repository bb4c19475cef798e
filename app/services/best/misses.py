"""Counts shapes asked for that were not tuned; counted in memory, stored every few seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from app.errors import TilewiseError, UnknownMiss
from app.services.best.answer import BestAnswer
from app.store.database import Database
from app.store.records import MissPlace, MissRecord
from app.store.repository import MissRepository
from kernels.problem import Problem

_PERIOD: Final = 3.0  # seconds between two writes
_MOST: Final = 4096  # different shapes counted between two writes; more are dropped
_LOG = logging.getLogger(__name__)


class Miss(NamedTuple):
    """A problem that was answered on a device model by something less than exact."""

    device_model: str
    problem: Problem
    match: str


class MissCounter:
    """Counts misses. `note` takes no lock and makes no query; a race may lose a count."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fresh: dict[Miss, int] = {}
        self._flushing = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.total = 0

    def start(self) -> None:
        """Store what is counted from now on, every few seconds."""
        self._thread = threading.Thread(target=self._work, name="misses", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Store what is left, and end."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def note(self, miss: Miss) -> None:
        """One more was asked for this."""
        fresh = self._fresh
        if miss in fresh or len(fresh) < _MOST:
            fresh[miss] = fresh.get(miss, 0) + 1
            self.total += 1

    def noted(self, answer: BestAnswer) -> Miss | None:
        """Count the problem of an answer that is less than exact; gives what was counted."""
        if answer.match == "exact":
            return None
        miss = Miss(answer.device.model, answer.launch.problem, answer.match)
        self.note(miss)
        return miss

    def most_frequent(
        self,
        limit: int = 100,
        device_model: str | None = None,
        problem: Mapping[str, Any] | None = None,
        after: MissPlace | None = None,
    ) -> Sequence[MissRecord]:
        """The shapes asked for most often, first the most, as they were last stored. Blocks for a query."""
        return self._database.read(
            lambda session: MissRepository(session).most_frequent(limit, device_model, problem, after)
        )

    def dismiss(self, device_model: str, problem: Problem) -> None:
        """Forget a shape that is not to be tuned, until it is asked for again; raises UnknownMiss."""
        if not self.forget(device_model, problem):
            raise UnknownMiss(f"nothing is counted of {problem.key} on {device_model}")

    def forget(self, device_model: str, problem: Problem) -> bool:
        """Forget what is counted of a shape, stored or not yet; gives whether there was anything."""
        with self._flushing:
            fresh = self.drop(device_model, problem)
            return self._database.write(lambda session: MissRepository(session).forget(device_model, problem)) or fresh

    def drop(self, device_model: str, problem: Problem) -> bool:
        """Forget what was counted of a shape since the last write; gives whether there was anything."""
        found = [miss for miss in list(self._fresh) if miss[:2] == (device_model, problem)]
        for miss in found:
            self._fresh.pop(miss, None)
        return bool(found)

    def flush(self) -> None:
        """Store what has been counted since the last time."""
        with self._flushing:
            fresh, self._fresh = self._fresh, {}
            counts: dict[tuple[str, Problem], MissRecord] = {}
            for (model, problem, match), count in fresh.items():
                before, now = counts.get((model, problem)), datetime.now(UTC)
                counts[model, problem] = MissRecord(
                    model, problem, count + (before.count if before else 0), match, now, now
                )
            if counts:
                self._database.write(lambda session: MissRepository(session).add(counts.values()))

    def _work(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_PERIOD)
            try:
                self.flush()
            except TilewiseError as error:
                _LOG.warning("what was missed could not be stored: %s", error.message)
