"""The history of bests: rows are added at each promotion and deletion, and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.records import BestRecord, BestRevision
from app.store.repository.mapping import PROBLEM, alike, problem_of, taken
from app.store.tables import BestHistoryRow
from kernels.space import Config

PROMOTED: Final = "promoted"
DELETED: Final = "deleted"
_WINNER: Final = ("job_id", "kernel", "kernel_digest", "environment")
_TIMES: Final = ("median_ms", "ci95_lo_ms", "ci95_hi_ms", "samples", "policy")
_KEPT: Final = ("number", "event", "at", "device_model", *_WINNER, *_TIMES, "default_ms", "vendor_ms")


class BestHistoryRepository:
    """The history of bests."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, event: str, record: BestRecord) -> None:
        """Add what happened to a best: it was promoted when it was tuned, or is deleted now."""
        beside = {f"{name}_ms": getattr(getattr(record, name), "median_ms", None) for name in ("default", "vendor")}
        self._session.add(
            BestHistoryRow(
                event=event,
                at=record.tuned_at if event == PROMOTED else datetime.now(UTC),
                device_model=record.device_model,
                problem_key=record.problem.key,
                config=dict(record.trial.config),
                **taken(record.problem, PROBLEM),
                **taken(record.trial, (*_WINNER, *_TIMES)),
                **beside,
            )
        )

    def search(
        self,
        device_model: str | None = None,
        problem: Mapping[str, Any] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[BestRevision]:
        """The newest `limit` below a number, newest first; `problem` has some or all members of a problem."""
        given = alike(BestHistoryRow, problem or {})
        given += [] if device_model is None else [BestHistoryRow.device_model == device_model]
        given += [] if before is None else [BestHistoryRow.number < before]
        query = select(BestHistoryRow).where(*given).order_by(BestHistoryRow.number.desc()).limit(limit)
        return [
            BestRevision(problem=problem_of(row), config=Config.of(row.config), **taken(row, _KEPT))
            for row in self._session.scalars(query)
        ]
