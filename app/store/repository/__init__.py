"""Every SELECT of the project: records in, records out, within the caller's transaction."""

from app.store.repository.api_keys import ApiKeyRepository
from app.store.repository.bests import BestHistoryRepository, BestRepository
from app.store.repository.cache import CacheRepository
from app.store.repository.cordons import CordonRepository
from app.store.repository.devices import DeviceRepository
from app.store.repository.idempotency import FirstAnswerRepository
from app.store.repository.imports import ImportRepository
from app.store.repository.jobs import JobRepository
from app.store.repository.misses import MissRepository
from app.store.repository.profiles import ProfileRepository
from app.store.repository.pruning import PruneRepository
from app.store.repository.trials import FaultRepository, TrialRepository
from app.store.repository.workloads import WorkloadRepository

__all__ = [
    "ApiKeyRepository",
    "BestHistoryRepository",
    "BestRepository",
    "CacheRepository",
    "CordonRepository",
    "DeviceRepository",
    "FaultRepository",
    "FirstAnswerRepository",
    "ImportRepository",
    "JobRepository",
    "MissRepository",
    "ProfileRepository",
    "PruneRepository",
    "TrialRepository",
    "WorkloadRepository",
]
