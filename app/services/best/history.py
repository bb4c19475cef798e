"""The history of bests: what was promoted and deleted, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.store.database import Database
from app.store.records import BestRevision
from app.store.repository import BestHistoryRepository


def best_history(
    database: Database, device_model: str | None, problem: Mapping[str, Any], before: int | None, limit: int
) -> Sequence[BestRevision]:
    """The newest `limit` revisions below a number, newest first, of problems that have these members."""
    return database.read(lambda session: BestHistoryRepository(session).search(device_model, problem, before, limit))
