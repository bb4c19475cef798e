"""Claims of jobs in the rows themselves: by whom, until when, and the fence that every write of the job checks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Interval, func, literal, or_, select, text, update
from sqlalchemy.orm import Session

from app.errors import ClaimLost
from app.store.tables import JobRow

_LOG: Final = logging.getLogger(__name__)
REQUESTS: Final = 1  # the version of jobs' requests: raised when an older program could not run a new one
CLAIMS: Final = "claims"  # in a session's info: what the service holds, where services share the database
_CHECKED: Final = "checked"  # in a session's info: jobs whose claim this transaction has locked
_UNFINISHED: Final = ("queued", "running")
_REVISION: Final = text("SELECT version_num FROM alembic_version")
_SERIALISE: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:what, 0))")


class HeldClaims:
    """The claims that a service holds, by job: the fence of each. For any thread."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._fences: dict[str, int] = {}
        self._lost: set[str] = set()
        self._lock = threading.Lock()

    def __contains__(self, job_id: str) -> bool:
        """Whether a job is held."""
        with self._lock:
            return job_id in self._fences

    def fence(self, job_id: str) -> int | None:
        """The fence under which a job is held, or None."""
        with self._lock:
            return self._fences.get(job_id)

    def fences(self) -> dict[str, int]:
        """All that is held."""
        with self._lock:
            return dict(self._fences)

    def hold(self, job_id: str, fence: int) -> None:
        """A job was claimed."""
        with self._lock:
            self._fences[job_id] = fence
            self._lost.discard(job_id)

    def lose(self, job_id: str) -> None:
        """Another service has claimed a job meanwhile: whoever works on it here is to stop."""
        with self._lock:
            if self._fences.pop(job_id, None) is None:
                return
            self._lost.add(job_id)
        _LOG.warning("job %s is another service's now", job_id)

    def lost(self) -> set[str]:
        """The jobs that were lost, and that somebody works on here still."""
        with self._lock:
            return set(self._lost)

    def is_lost(self, job_id: str) -> bool:
        """Whether a job was lost, and those who worked on it have not left it yet."""
        with self._lock:
            return job_id in self._lost

    def drop(self, job_id: str) -> int | None:
        """Nobody works on a job here any more; gives the fence if it was held."""
        with self._lock:
            self._lost.discard(job_id)
            return self._fences.pop(job_id, None)


def expect_held(session: Session, job_id: str) -> None:
    """Lock the claim of a job until the transaction ends; raises ClaimLost if another service may have it.

    Nothing where one service owns the database.
    """
    held: HeldClaims | None = session.info.get(CLAIMS)
    if held is None or job_id in session.info.setdefault(_CHECKED, set()):
        return
    fence = held.fence(job_id)
    mine = JobRow.id == job_id, JobRow.claimed_by == held.service, JobRow.fence == fence
    if fence is None or session.scalar(select(JobRow.number).where(*mine).with_for_update()) is None:
        held.lose(job_id)
        raise ClaimLost(f"job {job_id} is another service's: this one was away for longer than its lease")
    session.info[_CHECKED].add(job_id)


def mine_or_free(session: Session, job_id: str) -> list[ColumnElement[bool]]:
    """That a job is run by nobody, or by this service under the fence that it knows; always where one owns all."""
    held: HeldClaims | None = session.info.get(CLAIMS)
    if held is None:
        return []
    mine = (JobRow.claimed_by == held.service) & (JobRow.fence == held.fence(job_id))
    return [or_(JobRow.claimed_by.is_(None), mine)]


def serialised(session: Session, what: str) -> None:
    """Let one transaction of all services at a time do this; nothing where one service owns the database."""
    if session.info.get(CLAIMS) is not None:
        session.execute(_SERIALISE, {"what": what})


class ClaimRepository:
    """Claims of one service, in a transaction of PostgreSQL; leases are reckoned by the server's clock alone."""

    def __init__(self, session: Session, service: str, lease: float) -> None:
        self._session, self._service = session, service
        self._until = func.now() + literal(timedelta(seconds=lease), Interval)

    def revision(self) -> str | None:
        """The schema of the database, which a newer program may have migrated meanwhile."""
        found: str | None = self._session.scalar(_REVISION)
        return found

    def wanted(self, kinds: Collection[str]) -> list[str | None]:
        """The different device models of the jobs of some kinds that nobody runs."""
        return list(self._session.scalars(select(JobRow.device_models).where(*_free(kinds)).distinct()))

    def claim(
        self,
        kinds: Collection[str],
        models: Iterable[str | None],
        without: Collection[str],
        last: str,
        skipped: str | None = None,
    ) -> tuple[str, int] | None:
        """Claim the oldest job that nobody runs, of these device models; gives its id and fence, or None.

        Rows that another service is claiming are passed over. Those of principal `last` come last, of `skipped` never.
        """
        named = list(models)
        any_model = [JobRow.device_models.is_(None)] if None in named else []
        fits = or_(JobRow.device_models.in_([one for one in named if one is not None]), *any_model)
        others = [] if skipped is None else [JobRow.principal != skipped]
        query = select(JobRow.id).where(*_free(kinds), fits, JobRow.id.not_in(without), *others)
        query = query.order_by(JobRow.principal == last, JobRow.number).limit(1).with_for_update(skip_locked=True)
        found = self._session.scalar(query)
        return None if found is None else (found, self.take(found))

    def take(self, job_id: str) -> int:
        """Claim a job whose row this transaction has locked, or has made; gives its new fence."""
        fence = func.coalesce(JobRow.fence, 0) + 1
        values: dict[str, Any] = {"claimed_by": self._service, "lease_until": self._until, "fence": fence}
        change = update(JobRow).where(JobRow.id == job_id).values(**values).returning(JobRow.fence)
        return int(self._session.scalar(change) or 0)

    def lapsed(self, kind: str) -> list[str]:
        """The jobs of a kind that are claimed as they are made, and whose service is gone: to be ended."""
        return list(self._session.scalars(select(JobRow.id).where(*_free([kind])).with_for_update(skip_locked=True)))

    def renew(self, fences: Mapping[str, int]) -> set[str]:
        """Hold on to claims for another lease; gives those that are not held any more."""
        mine = JobRow.claimed_by == self._service, JobRow.id.in_(fences)
        change = update(JobRow).where(*mine).values(lease_until=self._until).returning(JobRow.id, JobRow.fence)
        kept = {job_id for job_id, fence in self._session.execute(change) if fence == fences[job_id]}
        return set(fences) - kept

    def release(self, fences: Mapping[str, int]) -> None:
        """Give up claims of jobs that have not ended: any service may take them at once."""
        for job_id, fence in fences.items():
            mine = JobRow.id == job_id, JobRow.claimed_by == self._service, JobRow.fence == fence
            change = update(JobRow).where(*mine, JobRow.state.in_(_UNFINISHED))
            self._session.execute(change.values(claimed_by=None, lease_until=None))


def _free(kinds: Collection[str]) -> tuple[ColumnElement[bool], ...]:
    """That a job of some kinds, of a request that this program knows, is run by nobody."""
    nobody = or_(JobRow.claimed_by.is_(None), JobRow.lease_until < func.now())
    known = or_(JobRow.version.is_(None), JobRow.version <= REQUESTS)
    return JobRow.kind.in_(kinds), JobRow.state.in_(_UNFINISHED), nobody, known
