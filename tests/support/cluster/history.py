"""What must hold of a tune's trials whatever nodes were lost meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.services.service import Service
from app.store.records import TrialRecord
from app.store.repository import TrialRepository


class TrialHistory:
    """A job's trials as they were seen while it ran, again and again."""

    def __init__(self, service: Service, job_id: str) -> None:
        self._service, self._job_id = service, job_id
        self._seen: dict[int, TrialRecord] = {}

    def look(self) -> int:
        """Look once: nothing that was saved is gone or another; gives how many there are."""
        rows = {row.id: row for row in self._rows() if row.id is not None}
        for number, row in self._seen.items():
            if row.round == "search":
                assert rows.get(number) == row, f"trial {number} was {row}, and is {rows.get(number)}"
        self._seen = rows
        return len(rows)

    def check(self) -> None:
        """No config was tried twice in a search."""
        tried = Counter(_what(self._rows()))
        again = {what: count for what, count in tried.items() if count > 1}
        assert not again, f"run more than once: {again}"

    def _rows(self) -> list[TrialRecord]:
        return self._service.database.read(lambda session: TrialRepository(session).of_job(self._job_id))


def _what(rows: Iterable[TrialRecord]) -> list[tuple[str, str, str]]:
    return [(row.problem.key, row.kernel, str(row.config)) for row in rows if row.round == "search"]
