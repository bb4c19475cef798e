"""Idempotency-Key: a repeated request is not executed again; its first answer is replayed.

As draft-ietf-httpapi-idempotency-key-header has it: 409 while the first is under way, 422 where the key comes with
another request. An error is the first answer, too, once a job was made: as that of a job that fails while its caller
waits. A key whose request made no job is free again, and so is one whose job failed with an error that may pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from time import monotonic
from typing import Any

from app.errors import KeyInUse, KeyReused
from app.services.principal import Principal
from app.store.database import Database
from app.store.records import AnswerRecord
from app.store.repository import FirstAnswerRepository


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request that was the first with its key: it is answered or given up, and may note its job meanwhile."""

    principal: str
    key: str

    def record_job(self, session: Any, job_id: str) -> None:
        """Note the job, in the transaction that makes it: from then on it is what the key stands for."""
        FirstAnswerRepository(session).attach(self.principal, self.key, job_id)


class Idempotency:
    """The keys of one database, each kept for `ttl` seconds after its request came. Every method blocks for a query.

    Those are seconds in which the service runs: they go on from the newest stored request at a start, and the wall
    clock, which may be set to another day, has no part in them. A service that shares the database has a `scope` of
    its own: a key is known where it came first.
    """

    def __init__(
        self, database: Database, ttl: float, clock: Callable[[], float] = monotonic, *, scope: str = ""
    ) -> None:
        self.ttl, self._scope = ttl, scope
        self._database, self._clock, self._began = database, clock, clock()
        self._open: set[IdempotentRequest] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Give up the requests that an earlier process neither answered nor made a job of."""

        def abandon(session: Any) -> float:
            FirstAnswerRepository(session).abandon(self._scope)
            return FirstAnswerRepository(session).newest(self._scope)

        self._began = self._clock() - self._database.write(abandon)

    def claim(self, principal: Principal, key: str, fingerprint: str) -> IdempotentRequest | AnswerRecord:
        """An attempt where the key is new, else what became of the first; raises KeyInUse, KeyReused.

        What was never answered has no status, but a job: its process ended, or could not write.
        """
        attempt, now = IdempotentRequest(self._scope + principal.name, key), self._clock() - self._began
        with self._lock:
            known = self._database.write(
                lambda session: self._claim(FirstAnswerRepository(session), attempt, fingerprint, now)
            )
            if known is None:
                self._open.add(attempt)
                return attempt
            is_open = attempt in self._open
        if known.fingerprint != fingerprint:
            raise KeyReused("this Idempotency-Key came with another request", key=key)
        if is_open:
            raise KeyInUse("the first request with this Idempotency-Key is still under way", key=key)
        return known

    def answered(self, attempt: IdempotentRequest, status: int, headers: Mapping[str, str], body: str | None) -> None:
        """Keep the first answer; `body` None: it is the result of the job.

        Where it cannot be written, the key stands for the request's job.
        """
        with self._closed(attempt):
            self._database.write(
                lambda session: FirstAnswerRepository(session).answer(*_place(attempt), status, headers, body)
            )

    def failed(self, attempt: IdempotentRequest, status: int, headers: Mapping[str, str], body: str) -> None:
        """Keep an error as the first answer where the request made a job, else forget the request."""

        def keep(session: Any) -> None:
            FirstAnswerRepository(session).fail(*_place(attempt), status, headers, body)
            FirstAnswerRepository(session).release(*_place(attempt))

        with self._closed(attempt):
            self._database.write(keep)

    def given_up(self, attempt: IdempotentRequest) -> None:
        """Forget a request that made no job, or one that came to nothing: its key may try again."""
        with self._closed(attempt):
            self._database.write(lambda session: FirstAnswerRepository(session).release(*_place(attempt)))

    def _claim(
        self, answers: FirstAnswerRepository, attempt: IdempotentRequest, fingerprint: str, now: float
    ) -> AnswerRecord | None:
        answers.forget(now - self.ttl, self._scope)
        record = AnswerRecord(attempt.principal, attempt.key, fingerprint, datetime.now(UTC), service_seconds=now)
        known = answers.claim(record)
        if known is None or known.status is not None or known.job_id is not None or attempt in self._open:
            return known
        answers.release(*_place(attempt))  # it was given up, and that could not be written
        return answers.claim(record)

    @contextmanager
    def _closed(self, attempt: IdempotentRequest) -> Iterator[None]:
        """The attempt is over whatever becomes of the block."""
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(attempt)


def fingerprint(method: str, path: str, query: bytes, *body: bytes | memoryview) -> str:
    """What two requests must have in common to be the same."""
    digest = sha256(repr((method, path, query, [len(part) for part in body])).encode())
    for part in body:
        digest.update(part)
    return digest.hexdigest()


def _place(attempt: IdempotentRequest) -> tuple[str, str]:
    return attempt.principal, attempt.key
