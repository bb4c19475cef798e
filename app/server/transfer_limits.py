"""TransferLimits: how slowly a client may send or read before its connection is closed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TransferLimits:
    """Seconds without a byte, seconds for a whole body, and bytes a second that a transfer must keep up.

    `slab_timeout`: seconds in which a transfer at its rate would move as many bytes as the slab holds for it, or it
    gives way to others who find no room there.
    """

    idle_timeout: float = 60.0
    transfer_timeout: float = 3600.0
    min_rate: int = 2**14
    slab_timeout: float = 60.0
