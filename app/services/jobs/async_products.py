"""Products made as jobs (Prefer: respond-async): the result is kept for a while and fetched later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from app.errors import Cancelled, NoResult, StoreFailed, TilewiseError, TooLarge
from app.services.jobs.result_store import FILES, ResultStore
from app.services.jobs.service import ENDED, JobService, new_job
from app.services.matmul.buffers import OperandBuffers, Product
from app.services.matmul.device_queue import CancelToken
from app.services.matmul.service import MatmulService
from app.services.principal import ANONYMOUS
from app.services.sharing.claims import JobClaims
from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import JobRepository

_LOG = logging.getLogger(__name__)
_DIGEST: Final = "sha256"  # of a job's result: the checksum of C's bytes
_REMEMBERED: Final = 1024  # errors that are kept as they were raised
RecordJob = Callable[[Any, str], None]
Outcome = tuple[str, dict[str, Any] | None, TilewiseError | None]


class AsyncProducts:
    """Jobs of kind matmul; their results, in `folder`, are kept for `ttl` seconds, up to `most` bytes and `files`.

    What was under way at a restart is failed then, code lost; results survive it, if their jobs name them.
    """

    def __init__(
        self,
        database: Database,
        jobs: JobService,
        matmul: MatmulService,
        folder: Path,
        ttl: float,
        most: int = 2**34,
        files: int = FILES,
        claims: JobClaims | None = None,
    ) -> None:
        self.store = ResultStore(folder, ttl, most, files=files)
        self._database, self._jobs, self._matmul = database, jobs, matmul
        self._claims = claims
        self._errors: dict[str, TilewiseError] = {}
        self._lock = threading.Lock()
        # That a job runs is written beside its launch: the device does not wait for a disk.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="results")

    def start(self) -> None:
        """Fail what an earlier process left unfinished, and take up its results.

        Of services that share the database any ends what was left, once its claim has lapsed.
        """
        self.store.start(self._ages)
        self._writer.submit(int).result()  # its thread is there from now on
        if self._claims is not None:
            return
        lost = {"code": "lost", "error": "the service restarted before the product was made"}
        for job in self._database.read(lambda session: JobRepository(session).unfinished()):
            if job.kind == "matmul":
                self._jobs.end(job.id, "failed", None, lost)

    def _ages(self, names: Sequence[str]) -> dict[str, float]:
        """The seconds since the jobs of these ids were made, of those whose results are kept."""
        jobs = self._database.read(lambda session: [JobRepository(session).get(name) for name in names])
        now = datetime.now(UTC)
        return {
            job.id: max(0.0, (now - job.finished_at).total_seconds())
            for job in jobs
            if job is not None and job.finished_at is not None and _DIGEST in (job.result or {})
        }

    def stop(self) -> None:
        """Write what is still to be written, and remove nothing any more."""
        self.store.stop()
        self._writer.shutdown()

    def create(self, buffers: OperandBuffers, record_job: RecordJob | None = None) -> JobRecord:
        """A queued job for operands that are received; `record_job` writes beside it, in one transaction.

        Raises TooLarge where the result is more than all that may be kept.
        """
        size, most = buffers.problem.c_bytes, self.store.most
        if size > most:
            raise TooLarge(f"C takes {size} bytes, {most} of results are kept", limit=most, size=size)
        owner = ANONYMOUS if buffers.ticket is None else buffers.ticket.principal
        job = new_job("matmul", {"problem": buffers.problem.key}, total=1, principal=owner)

        def add(session: Any) -> None:
            JobRepository(session).add(job)
            if self._claims is not None:
                self._claims.take_new(session, job.id)
            if record_job is not None:
                record_job(session, job.id)

        self._jobs.mark_active(job.id)
        try:
            self._database.write(add)
        except TilewiseError:
            self._jobs.mark_inactive(job.id)
            if self._claims is not None:
                self._claims.held.drop(job.id)
            raise
        self._jobs.notify(job.id)
        return job

    def make(
        self,
        job_id: str,
        buffers: OperandBuffers,
        device_id: str | None,
        kernel: str | None,
        verify: str | None = None,
    ) -> dict[str, Any] | None:
        """Make the job's product and keep it; gives the job's result. Whatever fails is the job's error.

        A job that is cancelled leaves the queue at once. If its launch is under way, CancelToken.cancel decides whether
        that is killed; else the result is dropped at the launch's end.
        """
        running: list[Future[None]] = []

        tiles, turn = buffers.plan.tiles, threading.Lock()
        total, launches = 1 if tiles is None else len(tiles), 0

        def begun() -> None:
            nonlocal launches
            with turn:  # several devices' tiles begin at any time
                launches += 1
            if len(running) > 1 and not running[-1].done():
                return  # the disk is slower than the tiles
            with suppress(RuntimeError):  # the service ends: the job is lost, and told so at the next start
                done = min(launches - 1, total - 1)
                if launches == 1 or done:
                    running.append(self._writer.submit(self._mark_running, job_id, total, done))

        token = CancelToken(begun)
        unsubscribe = self._jobs.subscribe(job_id, lambda: self._apply_cancellation(job_id, token))
        try:
            outcome = self._outcome(job_id, buffers, (device_id, kernel, token, verify))
        finally:
            unsubscribe()
        for note in running:
            note.exception()
        self._conclude(job_id, *outcome)
        return outcome[1]

    def abandon(self, job_id: str, error: BaseException) -> None:
        """Fail a job that is not made after all, without waiting for the database; one that has ended stays."""
        told = _known(job_id, error)
        with suppress(RuntimeError):  # the service ends: the job is lost, and told so at the next start
            self._writer.submit(self._conclude, job_id, "failed", None, told)

    def open(self, job: JobRecord) -> BinaryIO:
        """The file of C's bytes; raises NoResult if it has none, or it is not kept any more."""
        digest = (job.result or {}).get(_DIGEST, "")
        found = self.store.open(job.id, digest) if job.state == "succeeded" else None
        if found is None:
            over = " any more" if job.state in ENDED else ""
            over += " here: the service that made it may have it" if over and self._claims is not None else ""
            raise NoResult(f"job {job.id} is {job.state} and has no result{over}", state=job.state)
        return found

    def error(self, job: JobRecord) -> TilewiseError:
        """Why a job that ended has no result."""
        with self._lock:
            known = self._errors.get(job.id)
        return known or NoResult(f"job {job.id} is {job.state} and has no result", state=job.state)

    def _outcome(
        self,
        job_id: str,
        buffers: OperandBuffers,
        how: tuple[str | None, str | None, CancelToken, str | None],
    ) -> Outcome:
        token = how[2]
        try:
            self._apply_cancellation(job_id, token)
            if buffers.plan.tiles is not None and not buffers.plan.fits:
                how = (*how[:3], "freivalds")
            product = self._matmul.multiply(buffers, *how)
            token.raise_if_cancelled()
            kept = {} if buffers.pending_result is not None else {_DIGEST: self.store.put(job_id, buffers.result)}
            return "succeeded", _facts(buffers, product) | kept, None
        except Cancelled as error:
            return "cancelled", None, error
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the job's
            return "failed", None, _known(job_id, error)

    def _apply_cancellation(self, job_id: str, token: CancelToken) -> None:
        if self._jobs.is_cancelled(job_id) and not token.is_cancelled:
            token.cancel(kill=True)

    def _mark_running(self, job_id: str, total: int, done: int) -> None:
        now = datetime.now(UTC)
        self._database.write(lambda session: JobRepository(session).start(job_id, total, now, done))
        self._jobs.notify(job_id)

    def _conclude(self, job_id: str, state: str, result: dict[str, Any] | None, error: TilewiseError | None) -> None:
        if error is not None:
            with self._lock:
                if len(self._errors) >= _REMEMBERED:
                    self._errors.pop(next(iter(self._errors)))
                self._errors[job_id] = error
        told = _told(error) if error is not None and state == "failed" else None
        done = {"done": (result or {}).get("tiles", 1)} if state == "succeeded" else {}
        self._jobs.end(job_id, state, result, told, **done)
        if self._claims is not None:
            self._claims.held.drop(job_id)


def _known(job_id: str, error: BaseException) -> TilewiseError:
    if isinstance(error, TilewiseError):
        return error
    _LOG.error("job %s failed", job_id, exc_info=error)
    if isinstance(error, OSError):
        return StoreFailed(f"the result cannot be kept: {error.strerror or error}")
    return TilewiseError("the service has a fault: see its log")


def _told(error: TilewiseError) -> dict[str, Any]:
    return {"code": "internal" if type(error) is TilewiseError else error.code, "error": error.message}


def _facts(buffers: OperandBuffers, product: Product) -> dict[str, Any]:
    return {
        "problem": buffers.problem.key,
        "shape": list(buffers.result.shape),
        "dtype": buffers.problem.dtype,
        "device": product.device.id,
        "kernel": product.kernel,
        "config": product.config,
        "match": product.match,
        "instructions": product.instructions,
        "precision": product.precision,
        "declined": product.declined,
        "tiles": product.tiles,
        "devices": dict(product.devices) or None,
        "certificate": product.certificate.facts() if product.certificate else None,
        "timing_ms": {phase: 1e3 * seconds for phase, seconds in product.seconds.items()},
        "together": product.together,
    }
