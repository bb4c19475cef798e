"""ProfileService: takes orders for profiles."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from hashlib import sha256
from typing import Final

from app.devices.fleet import Fleet
from app.services.jobs.service import JobService, new_job
from app.services.principal import Principal
from app.services.tuning.request import TuneSpec, normalize
from app.services.tuning.service import TuningService
from app.store.database import Database
from app.store.records import JobRecord
from app.store.repository import JobRepository
from kernels.problem import Problem

PROFILE: Final = "profile"  # the kind of its jobs


class ProfileService:
    """Takes orders for profiles."""

    def __init__(self, database: Database, fleet: Fleet, jobs: JobService, tuning: TuningService) -> None:
        self._database, self._fleet, self._jobs, self._tuning = database, fleet, jobs, tuning
        self._submitting = threading.Lock()

    def submit(self, problem: Problem, device_id: str | None, principal: Principal) -> JobRecord:
        """The job that profiles a problem's kernels on a device, the one that is queued or runs if there is one.

        Raises UnknownDevice, NoDevice, Unsupported, TooLarge, DeviceCordoned, QueueFull.
        """
        devices = (self._fleet.unit(device_id).device.id,)
        normalize(TuneSpec((problem,), devices), self._fleet)
        request = {"problem": asdict(problem), "device": devices[0]}
        work = sha256(json.dumps([PROFILE, principal.name, request], sort_keys=True).encode()).hexdigest()
        with self._submitting:
            active = self._database.read(lambda session: JobRepository(session).active(work))
            if active is not None:
                return active
            self._tuning.expect_room()
            job = new_job(PROFILE, request, work, principal=principal)
            add = self._tuning.sharing.adder(devices)
            self._database.write(lambda session: add(session, job))
        self._tuning.enqueue(job)
        self._jobs.notify(job.id)
        return job
