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
from app.services.cache.service import CacheService
from app.services.exports.service import ExportService
from app.services.health.status import ServiceHealth
from app.services.interchange.export import ResultsExport
from app.services.interchange.imports import ImportService
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.idempotency import Idempotency
from app.services.jobs.service import JobService
from app.services.matmul.readiness import DefaultVerification
from app.services.matmul.resident_matrices import ResidentMatrices
from app.services.matmul.service import MatmulService
from app.services.profiles.service import ProfileService
from app.services.shared_memory.registry import SharedMemoryRegistry
from app.services.tuning.service import TuningService
from app.services.workloads.service import WorkloadService
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
    health: ServiceHealth
    access: Access
    exports: ExportService
    workloads: WorkloadService
    imports: ImportService
    stored_results: ResultsExport
    cache: CacheService
    profiles: ProfileService
    closing: threading.Event

    def ready(self) -> str | None:
        """Why products are not served now; None if a device serves them."""
        return "the service is shutting down" if self.closing.is_set() else self.health.unready()
