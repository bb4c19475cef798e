"""KeyMethods: API keys made, listed and revoked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from tilewise._http1 import HttpRequest
from tilewise._requests import RequestMethods
from tilewise._sansio import Flow, Operation
from tilewise.decoding import from_json

_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key of a principal. `key` is what its bearer shows, told once, as it is made; else None.

    One with `certificate` has none: the principal is the subject of a client certificate. `quota` has what is set of
    requests_per_second, share, bytes_in_flight, tune_seconds_per_hour, product_seconds_per_hour, jobs, resident_bytes.
    """

    id: str
    principal: str
    scopes: tuple[str, ...]
    quota: dict[str, float]
    certificate: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    key: str | None = None


class KeyMethods(RequestMethods):
    """API keys, for whoever has the scope `manage`. Every method raises ClientError if the service refuses."""

    @Operation
    def create_key(
        self,
        principal: str,
        *,
        scopes: Iterable[str] = ("read", "tune", "multiply"),
        seconds: int | None = None,
        certificate: bool = False,
        quota: Mapping[str, float] | None = None,
    ) -> Flow[ApiKey]:
        """Make a key of a principal, which expires after `seconds`. Only this answer has its `key`."""
        asked = {
            "principal": principal,
            "scopes": list(scopes),
            "seconds": seconds,
            "certificate": certificate,
            "quota": dict(quota or {}),
        }
        body = memoryview(json.dumps(asked).encode())
        return self._as(ApiKey, (yield from self.transport.exchange(HttpRequest("POST", "/keys", (body,), _JSON))))

    @Operation
    def list_keys(self) -> Flow[list[ApiKey]]:
        """List every key that was made, the newest first."""
        return [from_json(ApiKey, entry) for entry in (yield from self._list("/keys", "keys"))]

    @Operation
    def revoke_key(self, key_id: str) -> Flow[ApiKey]:
        """End a key: the next request with it is refused."""
        ask = HttpRequest("DELETE", f"/keys/{quote(key_id, safe='')}", again=True)
        return self._as(ApiKey, (yield from self.transport.exchange(ask)))
