"""Every SELECT of the project: records in, records out, within the caller's transaction."""

from app.store.repository.bests import Bests
from app.store.repository.devices import Devices
from app.store.repository.faults import Faults
from app.store.repository.idempotency import Answers
from app.store.repository.jobs import Jobs
from app.store.repository.misses import Wants
from app.store.repository.trials import Trials

__all__ = ["Answers", "Bests", "Devices", "Faults", "Jobs", "Trials", "Wants"]
