"""Service: everything that is open while the service, or one command of the CLI, runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from app.devices.fleet import Fleet
from app.services.access.caller import Access
from app.services.best.lookup import BestConfigs
from app.services.best.misses import MissCounter
from app.services.best.quarantine import Quarantine
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.idempotency import Idempotency
from app.services.jobs.service import JobService
from app.services.matmul.readiness import DefaultVerification
from app.services.matmul.resident_matrices import ResidentMatrices
from app.services.matmul.service import MatmulService
from app.services.shared_memory.registry import SharedMemoryRegistry
from app.services.tuning.service import TuningService
from app.store.database import Database


@dataclass(frozen=True)
class Service:
    """Everything that is open while the service, or one command of the CLI, runs."""

    data_dir: Path
    database: Database
    fleet: Fleet
    best: BestConfigs
    jobs: JobService
    tuning: TuningService
    matmul: MatmulService
    matrices: ResidentMatrices
    regions: SharedMemoryRegistry
    results: AsyncProducts
    idempotency: Idempotency
    misses: MissCounter
    quarantine: Quarantine
    defaults: DefaultVerification
    access: Access
    closing: threading.Event

    def ready(self) -> str | None:
        """Why products are not served yet, or None: a device is ready once its lowest default is verified."""
        if self.closing.is_set():
            return "the service is shutting down"
        states = self.defaults.states()
        if not states:
            return "; ".join(self.fleet.reasons) or "no device was asked for"
        reasons = [state.reason for state in states if state.reason is not None]
        return "; ".join(reasons) if len(reasons) == len(states) else None
