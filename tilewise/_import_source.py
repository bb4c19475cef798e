"""ImportSource: where an answer comes from that nobody measured on the service's device."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ImportSource:
    """The import that an answer comes from: nobody measured it on the service's device."""

    import_id: str
    format: str
    device: str
    imported_at: datetime
