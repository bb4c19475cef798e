"""Products made as jobs: the caller comes back for the result, which is kept as a .npy file for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from app.errors import NoResult, TilewiseError
from app.services.jobs import ENDED, Jobs, new_job
from app.services.matmul import Matmul, Placement, Product
from app.store.engine import Database
from app.store.records import JobRecord
from app.store.repository import Jobs as JobRows


class Results:
    """Jobs of kind matmul and their results, one file each in `folder`, for `ttl` seconds after the job's end.

    They do not survive a restart: what was under way is failed then, code lost, and the folder is emptied.
    """

    def __init__(self, database: Database, jobs: Jobs, matmul: Matmul, folder: Path, ttl: int) -> None:
        self._database, self._jobs, self._matmul = database, jobs, matmul
        self._folder, self._ttl = folder, ttl

    def start(self) -> None:
        """Fail what an earlier process left unfinished, and forget its results."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink()
        lost = {"code": "lost", "error": "the service restarted before the product was made"}
        for job in self._database.read(lambda session: JobRows(session).unfinished()):
            if job.kind == "matmul":
                self._end(job.id, "failed", None, lost)

    def create(self, placement: Placement) -> JobRecord:
        """A queued job for operands that have landed."""
        job = new_job("matmul", {"problem": placement.problem.key}, total=1)
        self._database.write(lambda session: JobRows(session).add(job))
        return job

    def make(self, job_id: str, placement: Placement, device_id: str | None, kernel: str | None) -> None:
        """Make the job's product and keep it; whatever fails is the job's error. A job cancelled before is left."""
        if not self._database.write(lambda session: JobRows(session).start(job_id, 1, datetime.now(UTC))):
            return
        try:
            product = self._matmul.multiply(placement, device_id, kernel)
            self._keep(job_id, placement)
        except TilewiseError as error:
            self._end(job_id, "failed", None, {"code": error.code, "error": error.message})
        else:
            state = "cancelled" if self._jobs.is_cancelled(job_id) else "succeeded"
            self._end(job_id, state, _facts(placement, product), None)

    def path(self, job_id: str) -> Path:
        """The .npy file of a job's C; raises UnknownJob, and NoResult where it has none or its time is over."""
        job = self._jobs.get(job_id)
        path = self._folder / f"{job_id}.npy"
        self._sweep()
        if job.state != "succeeded" or not path.exists():
            over = " any more" if job.state in ENDED else ""
            raise NoResult(f"job {job_id} is {job.state} and has no result{over}", state=job.state)
        return path

    def _keep(self, job_id: str, placement: Placement) -> None:
        self._sweep()
        aside = self._folder / f"{job_id}.part"
        with aside.open("wb") as file:
            np.save(file, placement.c, allow_pickle=False)
        aside.rename(self._folder / f"{job_id}.npy")

    def _sweep(self) -> None:
        for path in self._folder.glob("*.npy"):
            if time() - path.stat().st_mtime >= self._ttl:
                path.unlink(missing_ok=True)

    def _end(self, job_id: str, state: str, result: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        at = datetime.now(UTC)
        self._database.write(lambda session: JobRows(session).finish(job_id, state, result, error, at))
        self._jobs.committed(job_id)


def _facts(placement: Placement, product: Product) -> dict[str, Any]:
    return {
        "problem": placement.problem.key,
        "shape": list(placement.c.shape),
        "dtype": placement.problem.dtype,
        "device": product.device.id,
        "kernel": product.kernel,
        "config": product.config,
        "match": product.match,
    }
