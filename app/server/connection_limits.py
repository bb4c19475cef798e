"""ConnectionLimits: how many connections there may be, in all and from one address."""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass

from starlette.responses import Response

from app.server.request import ErrorResponse


@dataclass(frozen=True)
class ConnectionLimits:
    """The most connections in all, and from one address; a Unix socket's clients have none, and count in all."""

    total: int
    per_address: int
    error: ErrorResponse

    @classmethod
    def of(cls, total: int | None, per_address: int | None, error: ErrorResponse) -> ConnectionLimits:
        """Limits where some are not chosen: half of the process's descriptors, and half of these for an address.

        The other half of the descriptors is the children's, the database's and the caches'.
        """
        total = total or max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        return cls(total, per_address or max(1, total // 2), error)

    def refusal(self, address: str, counts: Counter[str]) -> Response | None:
        """The answer to one more connection; None where it may come."""
        if counts.total() >= self.total:
            return self._refused(f"there are {self.total} connections, the limit")
        if address and counts[address] >= self.per_address:
            return self._refused(f"{address} has {self.per_address} connections, the limit")
        return None

    def _refused(self, message: str) -> Response:
        answer = self.error(503, "too_many_connections", message)
        answer.headers["Retry-After"] = "1"
        return answer
